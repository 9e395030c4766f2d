-- Purpose:   hands a mutex off from one hold of a client to another in one step
-- KEYS[1]:   the mutex
-- ARGV[1]:   owner that hands it off
-- ARGV[2]:   owner that receives it
-- ARGV[3]:   TTL in ms of the receiver; a repetition never shortens it
-- Returns:   nil done, now or by an earlier attempt; -3 neither holds it
-- Publishes: nothing
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[2] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return nil
end
if holder ~= ARGV[1] then return -3 end
-- First: after a write that needs no memory, Redis does not reject the next one as out of memory.
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return nil
