-- Purpose:   SET NX GET PX for servers below 7.0, which reject NX together with GET
-- KEYS[1]:   the mutex
-- ARGV[1]:   owner
-- ARGV[2]:   TTL in ms
-- Returns:   nil granted; otherwise the holder, which may be the owner itself
-- Publishes: nothing
local holder = redis.call('GET', KEYS[1])
if holder then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return nil
