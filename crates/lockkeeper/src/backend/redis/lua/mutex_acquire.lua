-- Purpose:   SET NX GET PX for servers below 7.0, which refuse NX together with GET
-- KEYS[1]:   the mutex
-- ARGV[1]:   owner
-- ARGV[2]:   time to live in ms
-- Returns:   nil granted; otherwise who holds it, the owner itself included
-- Publishes: nothing
local holder = redis.call('GET', KEYS[1])
if holder then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return nil
