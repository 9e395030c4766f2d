-- Purpose:   what a semaphore or a latch says, as if all that has ended had been swept out
-- KEYS[1]:   the counter
-- KEYS[2]:   which permits are taken until when, if they have ids
-- KEYS[3]:   the mark of a temporary semaphore, if they have ids
-- Returns:   time to live (-1 endless, -2 there is none), the number or nil, how many are taken,
--            1 for a temporary semaphore
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
