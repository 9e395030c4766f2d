-- Purpose:   take a free lock when it is one's turn, re-enter a held one, or get a place in the queue
-- KEYS[1]:   the lock
-- KEYS[2]:   its queue
-- KEYS[3]:   until when Redisson's waiters keep their places
-- KEYS[4]:   when our waiters were last heard of
-- KEYS[5]:   there while silence is forgiven, and a while longer
-- KEYS[6]:   its token, if one is to be issued
-- ARGV[1]:   owner
-- ARGV[2]:   time to live in ms; never shortens what there is
-- ARGV[3]:   hold count the owner will have; above 1 only a held lock is re-entered
-- ARGV[4]:   1 to keep a place in the queue
-- ARGV[5]:   publish command
-- ARGV[6]:   channel; a waiter's own has its id behind a colon
-- ARGV[7]:   time to live of the token in ms, or empty; where there is one
-- Returns:   nil or the token: granted; >= -1 busy, the time to live (-1 endless, or it is free and
--            another's turn); -3 the hold is gone
-- Publishes: 0 to the next waiter, if it is free and those before that one were dropped
-- The token, nothing if none is issued, or an error.
local function take(key, owner, ttl, token_key, token_ttl)
  local token = token_key and put_token(token_key, next_token(token_key), token_ttl)
  redis.call('HSET', key, owner, '1')
  local ends = redis.pcall('PEXPIRE', key, ttl)
  if type(ends) ~= 'table' then return token end
  -- Not permitted: a lock without an end must not stay.
  redis.call('HDEL', key, owner)
  return ends
end

local lock, queue, timeouts, seen, owner = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local left = redis.call('PTTL', lock)
-- Nobody has it and nobody waits: most takes end here, and cost no more than those of a plain lock.
if left == -2 and ARGV[3] == '1' and redis.call('EXISTS', queue, timeouts, seen) == 0 then
  return take(lock, owner, ARGV[2], KEYS[6], ARGV[7])
end
-- Also to fail before anything is written, if one of them is something else.
local placed = redis.call('ZSCORE', timeouts, owner)
strangers(queue, timeouts, seen)
if left ~= -2 then
  if redis.call('HEXISTS', lock, owner) == 1 then
    local token = KEYS[6] and (ARGV[3] == '1' and redis.call('GET', KEYS[6]) or next_token(KEYS[6]))
    -- First, and in any case, so that the next write is not refused for want of memory.
    redis.call('PEXPIRE', lock, math.max(left, tonumber(ARGV[2])))
    redis.call('HSET', lock, owner, ARGV[3])
    return token and put_token(KEYS[6], token, ARGV[7])
  end
  if ARGV[3] ~= '1' then return -3 end
  local wrong = not_a_lock(lock)
  if wrong then return wrong end
end
if ARGV[3] ~= '1' then return -3 end
if left == -2 and KEYS[6] then next_token(KEYS[6]) end
local now = now_ms()
local silence_kills = deadly(seen, KEYS[5], now)
-- Whoever asks lives.
if placed then redis.call('ZADD', seen, now, owner) end
local first, dropped = head(queue, timeouts, seen, now, silence_kills)
if left == -2 and (not first or first == owner) then
  local taken = take(lock, owner, ARGV[2], KEYS[6], ARGV[7])
  if type(taken) == 'table' then return taken end
  if first then redis.call('LPOP', queue) end
  redis.call('ZREM', timeouts, owner)
  redis.call('ZREM', seen, owner)
  if strangers(queue, timeouts, seen) then
    for _, other in ipairs(redis.call('ZRANGE', timeouts, 0, -1)) do
      redis.call('ZINCRBY', timeouts, -WAIT, other)
    end
    lasting(queue, timeouts, seen)
  end
  lower_head(queue, timeouts, seen, now, tonumber(ARGV[2]))
  return taken
end
if dropped then lower_head(queue, timeouts, seen, now, left) end
if left == -2 then
  left = -1
  if dropped then redis.pcall(ARGV[5], ARGV[6] .. ':' .. first, '0') end
end
if ARGV[4] ~= '1' then return left end
if not redis.call('ZSCORE', timeouts, owner) then
  -- Redisson's arithmetic: as long after the last in the queue as that one may wait. Among ours
  -- alone, no more than it would come to if each take had taken its time off.
  local ahead = math.max(left, 0)
  local last = redis.call('LINDEX', queue, -1)
  local ends = last and redis.call('ZSCORE', timeouts, last)
  if ends then
    local theirs = math.max(tonumber(ends) - now, 0)
    if not strangers(queue, timeouts, seen) then
      theirs = math.min(theirs, ahead + redis.call('LLEN', queue) * WAIT)
    end
    ahead = theirs
  end
  redis.call('ZADD', timeouts, string.format('%.0f', now + ahead + WAIT), owner)
  redis.call('RPUSH', queue, owner)
  redis.call('ZADD', seen, now, owner)
  lasting(queue, timeouts, seen)
end
return left
