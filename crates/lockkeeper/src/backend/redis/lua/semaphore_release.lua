-- Purpose:   give permits of a semaphore back, or see that they are never taken
-- KEYS[1]:   the semaphore
-- KEYS[2]:   what was answered to its requests
-- ARGV[1]:   the request that took them
-- ARGV[2]:   how many permits
-- ARGV[3]:   1 where they may not have been taken, 0 where they were
-- ARGV[4]:   publish command
-- ARGV[5]:   channel
-- ARGV[6..]: requests of this client that are settled and may be forgotten
-- Returns:   >= 0 given back, how many were told (-1: could not tell); nil nothing to give back, or
--            nothing to give it back to
-- Publishes: the free permits to the channel, if any
local past = recall(KEYS[2], ARGV[1])
if past == 'GIVEN BACK' then return 0 end
if past and past ~= 'GRANTED' then return nil end
local free, wrong
if past or ARGV[3] == '0' then
  free, wrong = number(KEYS[1])
  if wrong then return wrong end
  if free and free + ARGV[2] > COUNT_MAX then return too_many() end
end
needs_no_memory(KEYS[2])
if not free then
  -- A late repetition must neither take from the next semaphore of this name nor give to it.
  remember(KEYS[2], ARGV[1], 'CANCELLED', { unpack(ARGV, 6) })
  return nil
end
remember(KEYS[2], ARGV[1], 'GIVEN BACK', { unpack(ARGV, 6) })
local total = redis.call('INCRBY', KEYS[1], ARGV[2])
if total <= 0 then return 0 end
local told = redis.pcall(ARGV[4], ARGV[5], total)
if type(told) == 'table' then return -1 end
return told
