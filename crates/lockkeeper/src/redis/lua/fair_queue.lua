-- Purpose:   reads the queue of a fair lock, the next waiter first
-- KEYS[1]:   its queue
-- KEYS[2]:   expiry of queue positions, as Redisson stores it
-- KEYS[3]:   last heartbeats of our waiters
-- Returns:   the waiters that are not stale
-- Publishes: nothing
local waiting, now = {}, now_ms()
for _, owner in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  local heard, ends = redis.call('ZSCORE', KEYS[3], owner), redis.call('ZSCORE', KEYS[2], owner)
  local alive = ends and tonumber(ends) > now
  if heard then alive = tonumber(heard) >= now - SILENT end
  if alive then waiting[#waiting + 1] = owner end
end
return waiting
