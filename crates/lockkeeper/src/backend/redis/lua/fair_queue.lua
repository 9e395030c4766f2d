-- Purpose:   who waits for a fair lock, the next one first
-- KEYS[1]:   its queue
-- KEYS[2]:   until when Redisson's waiters keep their places
-- KEYS[3]:   when our waiters were last heard of
-- Returns:   the owners that still wait
-- Publishes: nothing
local waiting, now = {}, now_ms()
for _, owner in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  local heard, ends = redis.call('ZSCORE', KEYS[3], owner), redis.call('ZSCORE', KEYS[2], owner)
  local alive = ends and tonumber(ends) > now
  if heard then alive = tonumber(heard) >= now - SILENT end
  if alive then waiting[#waiting + 1] = owner end
end
return waiting
