-- Purpose:   take permits of a semaphore, or repeat that
-- KEYS[1]:   the semaphore
-- KEYS[2]:   what was answered to its requests
-- ARGV[1]:   the request
-- ARGV[2]:   how many permits
-- ARGV[3]:   channel that a waiter would listen on, or empty
-- ARGV[4..]: requests of this client that are settled and may be forgotten
-- Returns:   nil granted; BUSY, to a waiter with the number of listeners; -3 given back or cancelled
--            already
-- Publishes: nothing
local past = recall(KEYS[2], ARGV[1])
if past == 'GRANTED' then return nil end
if past then return -3 end
local free, wrong = number(KEYS[1])
if wrong then return wrong end
if not free then return unset() end
if free < tonumber(ARGV[2]) then return busy(redis.status_reply('BUSY'), ARGV[3]) end
remember(KEYS[2], ARGV[1], 'GRANTED', { unpack(ARGV, 4) })
redis.call('INCRBY', KEYS[1], 0 - ARGV[2])
return nil
