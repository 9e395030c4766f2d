-- Purpose:   releases permits of a semaphore, or prevents that they are acquired later
-- KEYS[1]:   the semaphore
-- KEYS[2]:   answers to its requests
-- ARGV[1]:   id of the request that acquired them
-- ARGV[2]:   number of permits
-- ARGV[3]:   1 if they may not have been acquired, 0 if they were
-- ARGV[4]:   publish command
-- ARGV[5]:   channel
-- ARGV[6..]: settled requests of this client, whose answers may be deleted
-- Returns:   >= 0 released, the number of notified subscribers (-1: could not notify); nil nothing was
--            acquired, or the semaphore does not exist
-- Publishes: the number of free permits to the channel, if it is not zero
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
  -- A late repetition must neither acquire from a new semaphore of this name nor release to it.
  remember(KEYS[2], ARGV[1], 'CANCELLED', { unpack(ARGV, 6) })
  return nil
end
remember(KEYS[2], ARGV[1], 'GIVEN BACK', { unpack(ARGV, 6) })
local total = redis.call('INCRBY', KEYS[1], ARGV[2])
if total <= 0 then return 0 end
return notify(ARGV[4], ARGV[5], total)
