-- Purpose:   reads a semaphore or a latch as if expired permits had been swept
-- KEYS[1]:   the counter
-- KEYS[2]:   acquired permits with their expiry, if they have ids
-- KEYS[3]:   mark of a temporary semaphore, if permits have ids
-- Returns:   TTL (-1 never expires, -2 does not exist), the number or nil, the number of acquired
--            permits, 1 for a temporary semaphore
-- Publishes: nothing
local count, wrong = number(KEYS[1])
if wrong then return wrong end
local taken = 0
if KEYS[2] then
  local now = string.format('%.0f', clock())
  taken = redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf')
  count = count and count + redis.call('ZCOUNT', KEYS[2], '-inf', now)
end
local left = redis.call('PTTL', KEYS[1])
local temporary = KEYS[3] and left >= 0 and redis.call('EXISTS', KEYS[3]) or 0
return { left, count or false, taken, temporary }
