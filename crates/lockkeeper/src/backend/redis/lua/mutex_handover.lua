-- Purpose:   pass a mutex from one hold of a client to another in one step
-- KEYS[1]:   the mutex
-- ARGV[1]:   owner that gives
-- ARGV[2]:   owner that receives
-- ARGV[3]:   time to live in ms, the receiver's; a repetition never shortens it
-- Returns:   nil done, also by an earlier try; -3 neither holds it
-- Publishes: nothing
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[2] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return nil
end
if holder ~= ARGV[1] then return -3 end
-- First, because after a write that needs no memory the next is not refused for want of it.
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return nil
