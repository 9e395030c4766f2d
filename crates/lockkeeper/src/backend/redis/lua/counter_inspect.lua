-- Purpose:   what a semaphore or a latch says, as if all that has ended had been swept out
-- KEYS[1]:   the counter
-- KEYS[2]:   which permits are taken until when, if they have ids
-- Returns:   time to live (-1 endless, -2 there is none), the number or nil, how many are taken
-- Publishes: nothing
local count, wrong = number(KEYS[1])
if wrong then return wrong end
local taken = 0
if KEYS[2] then
  local now = string.format('%.0f', clock())
  taken = redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf')
  count = count and count + redis.call('ZCOUNT', KEYS[2], '-inf', now)
end
return { redis.call('PTTL', KEYS[1]), count or false, taken }
