-- Purpose:   pass a mutex from one hold of a client to another in one step
-- KEYS[1]:   the mutex
-- ARGV[1]:   owner that gives
-- ARGV[2]:   owner that receives
-- ARGV[3]:   time to live in ms, the receiver's
-- Returns:   nil done, also by an earlier try; -3 neither holds it
-- Publishes: nothing
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] and holder ~= ARGV[2] then return -3 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return nil
