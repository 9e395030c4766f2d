-- Purpose:   acquires permits of a semaphore, or repeats that
-- KEYS[1]:   the semaphore
-- KEYS[2]:   answers to its requests
-- ARGV[1]:   id of the request
-- ARGV[2]:   number of permits
-- ARGV[3]:   channel that a waiter would listen on, or empty
-- ARGV[4]:   form of PUBSUB that counts listeners, or empty
-- ARGV[5..]: settled requests of this client, whose answers may be deleted
-- Returns:   nil granted; BUSY, for a waiter with the number of listeners; -3 released or cancelled
--            already
-- Publishes: nothing
local past = recall(KEYS[2], ARGV[1])
if past == 'GRANTED' then return nil end
if past then return -3 end
local free, wrong = number(KEYS[1])
if wrong then return wrong end
if not free then return unset() end
if free < tonumber(ARGV[2]) then return busy(redis.status_reply('BUSY'), ARGV[3], ARGV[4]) end
remember(KEYS[2], ARGV[1], 'GRANTED', { unpack(ARGV, 5) })
redis.call('INCRBY', KEYS[1], 0 - ARGV[2])
return nil
