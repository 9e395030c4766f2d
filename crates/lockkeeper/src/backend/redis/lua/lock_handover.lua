-- Purpose:   pass a lock from one hold of a client to another in one step
-- KEYS[1]:   the lock
-- ARGV[1]:   owner that gives
-- ARGV[2]:   owner that receives
-- ARGV[3]:   time to live in ms, the receiver's
-- Returns:   nil done, also by an earlier try; -3 neither holds it
-- Publishes: nothing
local received = redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
if not received and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return -3 end
-- After a write that needs no memory the others are not refused for want of it.
redis.call('PEXPIRE', KEYS[1], ARGV[3])
if not received then
  redis.call('HSET', KEYS[1], ARGV[2], '1')
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return nil
