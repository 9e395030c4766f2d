-- Purpose:   releases holds of a fair lock, or leaves its queue
-- KEYS[1]:   the lock
-- KEYS[2]:   its queue
-- KEYS[3]:   expiry of queue positions, as Redisson stores it
-- KEYS[4]:   last heartbeats of our waiters
-- KEYS[5]:   exists during a grace period for stale waiters, and until the next one may begin
-- ARGV[1]:   owner
-- ARGV[2]:   hold count that remains; no change if the stored count is not greater
-- ARGV[3]:   publish command
-- ARGV[4]:   channel; a waiter's own channel has a colon and its id appended
-- ARGV[5]:   TTL in ms if holds remain, or empty
-- ARGV[6]:   1 to set that TTL even if no hold is released
-- Returns:   >= 0 freed, the number of notified subscribers (-1: could not notify); KEPT; nil not held;
--            a field: the holder
-- Publishes: 0 to the next waiter when the lock is free; to the channel if the queue is empty
local lock, queue, timeouts, seen, owner = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
if ARGV[2] ~= '0' then
  local held = redis.call('HGET', lock, owner)
  if held then
    local fewer = tonumber(held) > tonumber(ARGV[2])
    -- First: after a write that needs no memory, Redis does not reject the next one as out of memory.
    local ttl = ARGV[5] ~= '' and tonumber(ARGV[5]) or redis.call('PTTL', lock)
    if ttl > 0 and (fewer or ARGV[6] == '1') then redis.call('PEXPIRE', lock, ttl) end
    if fewer then redis.call('HSET', lock, owner, ARGV[2]) end
    return redis.status_reply('KEPT')
  end
  return redis.call('HKEYS', lock)[1]
end
-- The queue is empty: most releases return here.
if redis.call('EXISTS', queue, timeouts, seen) == 0 then
  local freed = redis.pcall('HDEL', lock, owner)
  if freed == 1 then return notify(ARGV[3], ARGV[4], '0') end
  if type(freed) == 'table' or redis.call('HLEN', lock) > 16 then return nil end
  return redis.call('HKEYS', lock)[1]
end
-- The lock is released even if its queue is damaged, and the queue position even if the lock is.
local sound = true
for _, size in ipairs({ redis.pcall('LLEN', queue), redis.pcall('ZCARD', timeouts), redis.pcall('ZCARD', seen) }) do
  sound = sound and type(size) == 'number'
end
local freed = redis.pcall('HDEL', lock, owner)
if not sound then
  if freed == 1 then return notify(ARGV[3], ARGV[4], '0') end
  return nil
end
local mixed = strangers(queue, timeouts, seen)
local queued = redis.call('ZREM', timeouts, owner) + redis.call('ZREM', seen, owner) > 0
local was_first = queued and redis.call('LINDEX', queue, 0) == owner
if queued then
  -- Lowers the scores of Redisson's waiters behind it by its wait time.
  if mixed then
    local behind = false
    for _, other in ipairs(redis.call('LRANGE', queue, 0, -1)) do
      if behind and redis.call('ZSCORE', timeouts, other) then
        redis.call('ZINCRBY', timeouts, -WAIT, other)
      end
      behind = behind or other == owner
    end
  end
  redis.call('LREM', queue, 1, owner)
  if mixed then lasting(queue, timeouts, seen) end
end
if freed == 1 or (queued and redis.call('EXISTS', lock) == 0) then
  local now = now_ms()
  local first, dropped = head(queue, timeouts, seen, now, deadly(seen, KEYS[5], now))
  if was_first or dropped then lower_head(queue, timeouts, seen, now, 0) end
  local notified = notify(ARGV[3], first and (ARGV[4] .. ':' .. first) or ARGV[4], '0')
  if freed == 1 then return notified end
elseif was_first then
  lower_head(queue, timeouts, seen, now_ms(), redis.call('PTTL', lock))
end
if type(freed) == 'table' or redis.call('HLEN', lock) > 16 then return nil end
return redis.call('HKEYS', lock)[1]
