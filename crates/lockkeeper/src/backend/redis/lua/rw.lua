-- Purpose:   part of the scripts of the read/write lock: its mode, its readers, the writers that wait
-- Returns:   nothing by itself
-- Publishes: nothing
-- The lock is a hash: `mode`, a field for each reader, `<owner>:write` for the writer. A reader lives
-- as long as any of its holds has its key. These keys cannot be declared, because which readers there
-- are is known only in here; they share the lock's slot, and Redisson does the same.

-- read or write, nothing where there is no lock; the error if it is something else; the time to live.
local function mode_of(key)
  local left = redis.call('PTTL', key)
  if left == -2 then return nil, nil, left end
  local mode = redis.pcall('HGET', key, 'mode')
  if type(mode) == 'table' then return nil, mode, left end
  if mode == 'read' or mode == 'write' then return mode, nil, left end
  return nil, { err = 'WRONGKIND a lock, or a hash of other data' }, left
end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The key of one hold.
local function hold(prefix, owner, i) return prefix .. ':' .. owner .. ':rwlock_timeout:' .. i end

-- For how long a reader lives: its longest hold (-1 endless, -2 dead).
local function life(prefix, owner, count)
  local longest = -2
  -- A count that nobody reaches is somebody's data, over which the server must not stall.
  for i = 1, math.min(count, 65535) do
    longest = math.max(longest, redis.call('PTTL', hold(prefix, owner, i)))
  end
  return longest
end

-- Makes a reader live so long.
local function keep(prefix, owner, count, ttl)
  for i = 1, count do
    local key = hold(prefix, owner, i)
    if redis.call('PEXPIRE', key, ttl) == 0 then redis.call('SET', key, '1', 'PX', ttl) end
  end
end

local function drop(prefix, owner, first, last)
  for i = first, math.min(last, 65535) do redis.call('DEL', hold(prefix, owner, i)) end
end

-- Who lives of the readers, and how long the longest. Writers bury the dead, whose fields would stay
-- for as long as others keep the lock alive; readers, which meet them only by chance, do not.
local function readers(key, prefix, bury)
  local living, longest = {}, -2
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local count = tonumber(fields[i + 1])
    if count and not string.find(fields[i], ':write', 1, true) then
      local left = life(prefix, fields[i], count)
      if left ~= -2 then
        living[#living + 1], longest = fields[i], math.max(longest, left)
      elseif bury then
        redis.call('HDEL', key, fields[i])
      end
    end
  end
  return living, longest
end

-- Sets the end, and never to now: the key would be gone.
local function ends_in(key, ttl)
  if ttl >= 0 then redis.call('PEXPIRE', key, math.max(1, ttl)) end
end

-- Takes the writer out, so that the readers nested in its hold share the lock from now on. What needs
-- no memory comes first, for the next is then not refused for want of it.
local function downgrade(key, field, ttl)
  redis.call('HDEL', key, field)
  ends_in(key, ttl)
  redis.call('HSET', key, 'mode', 'read')
end

-- A writer has the lock until the lock ends, unless a reader nested in its hold lasts longer. Then a key
-- of its own says when the writer's lease ends: a sorted set, `end` -> ms. It is there only while the
-- lock has fields beside `mode` and the writer. Whatever is wrong with it fails no request.
local function write_end(prefix, writer) return prefix .. ':' .. writer .. ':lockkeeper_write_end' end

-- For how long the writer has the lock (below 0: no longer); `left`, that of the lock, if that is not said.
local function write_left(key, prefix, writer, left)
  if redis.call('HLEN', key) <= 2 then return left end
  local ends = redis.pcall('ZSCORE', write_end(prefix, writer), 'end')
  return type(ends) == 'string' and tonumber(ends) - clock() or left
end

-- The writer's lease ends in so many ms, and the lock later.
local function set_write_end(key, prefix, writer, ttl)
  local name = write_end(prefix, writer)
  -- First: without it the writer has all of the lock, which is safe, and after a write that needs no
  -- memory the next is not refused for want of it.
  redis.call('DEL', name)
  redis.pcall('ZADD', name, clock() + ttl, 'end')
  -- Not before the lock.
  redis.call('PEXPIRE', name, redis.call('PTTL', key) + 1000)
end

local function writer_of(key)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local writer = string.match(field, '^(.*):write$')
    if writer then return writer end
  end
end

-- A reader nested in the writer's hold has made the lock last longer, which had `left`.
local function outlast(key, prefix, left)
  local writer = writer_of(key)
  if writer and left >= 0 then
    set_write_end(key, prefix, writer, write_left(key, prefix, writer, left))
  end
end

-- As `mode_of`, after a writer was taken out whose lease has ended before those of its readers.
local function settled(key, prefix)
  local mode, wrong, left = mode_of(key)
  local writer = mode == 'write' and redis.call('HLEN', key) > 2 and writer_of(key)
  if not writer or write_left(key, prefix, writer, 0) >= 0 then return mode, wrong, left end
  local living, longest = readers(key, prefix, true)
  redis.call('DEL', write_end(prefix, writer))
  if #living == 0 then
    redis.call('DEL', key)
    return nil, nil, -2
  end
  downgrade(key, writer .. ':write', longest)
  return 'read', nil, redis.call('PTTL', key)
end

-- One who holds it: the writer before a reader.
local function holder(key)
  local first = nil
  if redis.call('HLEN', key) > 16 then return first end
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local writer = string.match(field, '^(.*):write$')
    if writer then return writer end
    if field ~= 'mode' then first = first or field end
  end
  return first
end

-- Writers that wait are a sorted set: owner -> ms last heard of. New readers wait behind them, but not
-- for ever: how that goes is a sorted set, too, `since` -> ms since when one waits, `turn` -> ms until
-- when writers let readers go first, `batch` -> ms when readers last came in before writers that wait.
-- Both are a courtesy: whatever is wrong with their keys fails no
-- request.
local PATIENCE, TURN, BATCH = 5000, 2500, 250

-- A writer waits, for another 2 s; and as long it is remembered what readers were given. Where 16 others
-- wait already, these keep readers out, and it need not be noted, too.
local function wait(key, patience, owner)
  local now = clock()
  local others = redis.pcall('ZCOUNT', key, now - 2000, '+inf')
  if type(others) == 'number' and others >= 16 and not redis.call('ZSCORE', key, owner) then return end
  if type(redis.pcall('ZADD', key, now, owner)) == 'table' then return end
  redis.call('PEXPIRE', key, 2000)
  redis.call('PEXPIRE', patience, 10000)
end

-- A writer waits no longer; whether it was the last of those that were heard of.
local function withdraw(key, owner)
  if redis.pcall('ZREM', key, owner) ~= 1 then return false end
  if redis.call('ZCOUNT', key, clock() - 2000, '+inf') > 0 then return false end
  redis.call('DEL', key)
  return true
end

-- Until when it is the readers' turn, if it is.
local function readers_turn(key, now)
  local turn = redis.pcall('ZSCORE', key, 'turn')
  turn = type(turn) == 'string' and tonumber(turn) or 0
  return turn > now and turn or nil
end

-- How long a new reader stays out that finds a writer, or writers that wait; nothing if it is let in.
-- `left` is how long the writer that holds the lock may have it, if one does. After 5 s of waiting it is
-- the readers' turn: writers wait until the first comes in and for 250 ms more. Readers that come to
-- readers have such a turn once, until a writer has had the lock: otherwise they would keep it for ever.
local function stays_out(writers, patience, left, waits)
  if not left and redis.call('EXISTS', writers, patience) == 0 then return nil end
  local now = clock()
  local turn = readers_turn(patience, now)
  local behind = math.max(redis.pcall('PTTL', writers) or 0, 0)
  if not left and (turn or behind == 0) then
    if turn and turn > now + BATCH then redis.call('ZADD', patience, now + BATCH, 'turn') end
    redis.pcall('ZREM', patience, 'since')
    return nil
  end
  local comes_back = left or behind
  if not waits or type(redis.pcall('ZADD', patience, 'NX', now, 'since')) == 'table' then
    return comes_back < 0 and comes_back or math.max(comes_back, 1)
  end
  redis.call('PEXPIRE', patience, 10000)
  local since = tonumber(redis.call('ZSCORE', patience, 'since'))
  local had = not left and redis.call('ZSCORE', patience, 'batch')
  if not turn and (had or now - since < PATIENCE) then
    local rest = had and comes_back or since + PATIENCE - now
    return math.max(math.min(comes_back < 0 and rest or comes_back, rest), 1)
  end
  redis.call('ZADD', patience, now + (left and TURN or BATCH), 'turn')
  if not left then redis.call('ZADD', patience, now, 'batch') end
  redis.call('ZREM', patience, 'since')
  if not left then return nil end
  return 1000
end

