-- Purpose:   hands a lock off from one hold of a client to another in one step
-- KEYS[1]:   the lock
-- KEYS[2]:   its fencing token, if one is to be issued
-- ARGV[1]:   owner that hands it off
-- ARGV[2]:   owner that receives it
-- ARGV[3]:   TTL in ms of the receiver; a repetition never shortens it
-- ARGV[4]:   TTL of the token in ms, or empty; only with a token
-- Returns:   nil or the token: done, now or by an earlier attempt; -3 neither holds it
-- Publishes: nothing
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  local token = KEYS[2] and next_token(KEYS[2])
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return token and put_token(KEYS[2], token, ARGV[4])
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return -3 end
local token = KEYS[2] and next_token(KEYS[2])
-- First: after a write that needs no memory, Redis does not reject the next one as out of memory.
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[1], ARGV[2], '1')
redis.call('HDEL', KEYS[1], ARGV[1])
return token and put_token(KEYS[2], token, ARGV[4])
