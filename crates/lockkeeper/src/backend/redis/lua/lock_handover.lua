-- Purpose:   pass a lock from one hold of a client to another in one step
-- KEYS[1]:   the lock
-- ARGV[1]:   owner that gives
-- ARGV[2]:   owner that receives
-- ARGV[3]:   time to live in ms, the receiver's; a repetition never shortens it
-- Returns:   nil done, also by an earlier try; -3 neither holds it
-- Publishes: nothing
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return nil
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return -3 end
-- First, because after a write that needs no memory the next is not refused for want of it.
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[1], ARGV[2], '1')
redis.call('HDEL', KEYS[1], ARGV[1])
return nil
