-- Purpose:   acquires a free lock at the owner's turn, re-enters a held one, or joins the queue
-- KEYS[1]:   the lock
-- KEYS[2]:   its queue
-- KEYS[3]:   expiry of queue positions, as Redisson stores it
-- KEYS[4]:   last heartbeats of our waiters
-- KEYS[5]:   exists during a grace period for stale waiters, and until the next one may begin
-- KEYS[6]:   its fencing token, if one is to be issued
-- ARGV[1]:   owner
-- ARGV[2]:   TTL in ms; never shortens the stored TTL
-- ARGV[3]:   hold count that the owner will have; above 1 only a held lock is re-entered
-- ARGV[4]:   1 to join the queue if busy
-- ARGV[5]:   publish command
-- ARGV[6]:   channel; a waiter's own channel has a colon and its id appended
-- ARGV[7]:   TTL of the token in ms, or empty; only with a token
-- Returns:   nil or the token: granted; >= -1 busy, the TTL (-1 never expires, or free and another
--            waiter's turn); -3 the hold does not exist
-- Publishes: 0 to the next waiter, if the lock is free and stale waiters before it were dropped
-- Returns the token, nothing if none is issued, or an error.
local function take(key, owner, ttl, token_key, token_ttl)
  local token = token_key and put_token(token_key, next_token(token_key), token_ttl)
  redis.call('HSET', key, owner, '1')
  local ends = redis.pcall('PEXPIRE', key, ttl)
  if type(ends) ~= 'table' then return token end
  -- PEXPIRE was denied: a lock without a TTL must not remain.
  redis.call('HDEL', key, owner)
  return ends
end

local lock, queue, timeouts, seen, owner = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local left = redis.call('PTTL', lock)
-- The lock is free and the queue is empty: most acquires return here, at the cost of a plain lock.
if left == -2 and ARGV[3] == '1' and redis.call('EXISTS', queue, timeouts, seen) == 0 then
  return take(lock, owner, ARGV[2], KEYS[6], ARGV[7])
end
-- Also fails before the first write if one of the keys has another type.
local placed = redis.call('ZSCORE', timeouts, owner)
strangers(queue, timeouts, seen)
if left ~= -2 then
  if redis.call('HEXISTS', lock, owner) == 1 then
    local token = KEYS[6] and next_token(KEYS[6])
    -- First and always: after a write that needs no memory, Redis does not reject the next one as out of
    -- memory.
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
-- A request counts as a heartbeat.
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
  if dropped then notify(ARGV[5], ARGV[6] .. ':' .. first, '0') end
end
if ARGV[4] ~= '1' then return left end
if not redis.call('ZSCORE', timeouts, owner) then
  -- As in Redisson, the position expires WAIT after that of the last waiter. Among ours alone, not later
  -- than if each acquire had lowered the scores.
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
