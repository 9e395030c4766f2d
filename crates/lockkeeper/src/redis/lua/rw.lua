-- Purpose:   part of the scripts of the read/write lock: its mode, its readers, its waiting writers
-- Returns:   nothing by itself
-- Publishes: nothing
-- The lock is a hash: `mode`, a field for each reader, `<owner>:write` for the writer. A reader holds
-- the lock while the key of any of its holds exists. These keys cannot be declared, because only the
-- script knows the readers. They are in the slot of the lock, and Redisson does the same. While that
-- slot is migrated, some may be at another node: there a live reader would look expired. So in a
-- cluster every script but WRITE_RENEW declares one more key, the last one, which never exists: such a
-- script is refused before it runs, unless the slot is whole.

-- Returns read or write, nothing if the lock is free; the error if the key is something else; the TTL.
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

-- Returns the key of one hold.
local function hold(prefix, owner, i) return prefix .. ':' .. owner .. ':rwlock_timeout:' .. i end

-- Returns the TTL of a reader: that of its longest hold (-1 never expires, -2 expired).
local function life(prefix, owner, count)
  local longest = -2
  -- A count this high is other data, and must not block the server.
  for i = 1, math.min(count, 65535) do
    longest = math.max(longest, redis.call('PTTL', hold(prefix, owner, i)))
  end
  return longest
end

-- Sets the TTL of a reader.
local function keep(prefix, owner, count, ttl)
  for i = 1, count do
    local key = hold(prefix, owner, i)
    if redis.call('PEXPIRE', key, ttl) == 0 then redis.call('SET', key, '1', 'PX', ttl) end
  end
end

local function drop(prefix, owner, first, last)
  for i = first, math.min(last, 65535) do redis.call('DEL', hold(prefix, owner, i)) end
end

-- Returns the readers that have not expired, and the longest TTL. Writers remove expired readers, whose
-- fields would remain as long as others hold the lock. Readers do not.
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

-- Sets the TTL, but never to 0, which would delete the key.
local function ends_in(key, ttl)
  if ttl >= 0 then redis.call('PEXPIRE', key, math.max(1, ttl)) end
end

-- Removes the writer, so that the readers nested in its hold share the lock. Writes that need no memory
-- come first: Redis then does not reject the next one as out of memory.
local function downgrade(key, field, ttl)
  redis.call('HDEL', key, field)
  ends_in(key, ttl)
  redis.call('HSET', key, 'mode', 'read')
end

-- A writer holds the lock until the lock expires, unless a reader nested in its hold has a longer lease.
-- Then a separate key contains the expiry of the writer's lease: a sorted set, `end` -> ms. It exists
-- only while the lock has fields other than `mode` and the writer. An error with this key fails no
-- request.
local function write_end(prefix, writer) return prefix .. ':' .. writer .. ':lockkeeper_write_end' end

-- Returns the remaining lease of the writer (below 0: expired); `left`, the TTL of the lock, if there is
-- no separate one.
local function write_left(key, prefix, writer, left)
  if redis.call('HLEN', key) <= 2 then return left end
  local ends = redis.pcall('ZSCORE', write_end(prefix, writer), 'end')
  return type(ends) == 'string' and tonumber(ends) - clock() or left
end

-- Sets the writer's lease to a TTL that is shorter than that of the lock.
local function set_write_end(key, prefix, writer, ttl)
  local name = write_end(prefix, writer)
  -- First: without the key the writer's lease is that of the lock, which is safe. After a write that
  -- needs no memory, Redis does not reject the next one as out of memory.
  redis.call('DEL', name)
  redis.pcall('ZADD', name, clock() + ttl, 'end')
  -- It must not expire before the lock.
  redis.call('PEXPIRE', name, redis.call('PTTL', key) + 1000)
end

local function writer_of(key)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local writer = string.match(field, '^(.*):write$')
    if writer then return writer end
  end
end

-- Keeps the writer's lease after a nested reader has extended the lock, whose TTL was `left`.
local function outlast(key, prefix, left)
  local writer = writer_of(key)
  if writer and left >= 0 then
    set_write_end(key, prefix, writer, write_left(key, prefix, writer, left))
  end
end

-- Like `mode_of`, but first removes a writer whose lease has expired before those of its readers.
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

-- Returns one holder, the writer first.
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

-- Waiting writers are a sorted set: owner -> ms of the last request. New readers wait behind them, but
-- not forever. A second sorted set controls that: `since` -> ms since when a reader waits, `turn` -> ms
-- until when writers let readers go first, `batch` -> ms when readers last preceded waiting writers. An
-- error with these keys fails no request.
local READERS_WAIT, TURN, BATCH = 5000, 2500, 250

-- Records that a writer waits, for another 2 s, and keeps the memory of what readers were granted. If 16
-- others wait, they keep readers out, and this one need not be recorded.
local function wait(key, patience, owner)
  local now = clock()
  local others = redis.pcall('ZCOUNT', key, now - 2000, '+inf')
  if type(others) == 'number' and others >= 16 and not redis.call('ZSCORE', key, owner) then return end
  if type(redis.pcall('ZADD', key, now, owner)) == 'table' then return end
  redis.call('PEXPIRE', key, 2000)
  redis.call('PEXPIRE', patience, 10000)
end

-- Removes a waiting writer. Returns whether it was the last one with a recent request.
local function withdraw(key, owner)
  if redis.pcall('ZREM', key, owner) ~= 1 then return false end
  if redis.call('ZCOUNT', key, clock() - 2000, '+inf') > 0 then return false end
  redis.call('DEL', key)
  return true
end

-- Returns until when it is the readers' turn, if it is.
local function readers_turn(key, now)
  local turn = redis.pcall('ZSCORE', key, 'turn')
  turn = type(turn) == 'string' and tonumber(turn) or 0
  return turn > now and turn or nil
end

-- Returns how long a new reader must wait for a writer or for waiting writers; nothing if it need not.
-- `left` is the remaining lease of the writer that holds the lock, if there is one. After 5 s of waiting
-- it is the readers' turn: writers wait until the first reader acquires the lock, and for 250 ms more.
-- While readers hold the lock, they get only one such turn until a writer has acquired it: otherwise
-- they would hold it forever.
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
  if not turn and (had or now - since < READERS_WAIT) then
    local rest = had and comes_back or since + READERS_WAIT - now
    return math.max(math.min(comes_back < 0 and rest or comes_back, rest), 1)
  end
  redis.call('ZADD', patience, now + (left and TURN or BATCH), 'turn')
  if not left then redis.call('ZADD', patience, now, 'batch') end
  redis.call('ZREM', patience, 'since')
  if not left then return nil end
  return 1000
end

