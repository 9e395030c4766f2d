-- Purpose:   acquires a free lock, re-enters a held one, or repeats either
-- KEYS[1]:   the lock
-- KEYS[2]:   its fencing token, if one is to be issued
-- ARGV[1]:   owner
-- ARGV[2]:   TTL in ms; never shortens the stored TTL
-- ARGV[3]:   hold count that the owner will have; above 1 only a held lock is re-entered
-- ARGV[4]:   TTL of the token in ms, or empty
-- ARGV[5]:   channel that a waiter would listen on, or nothing
-- ARGV[6]:   form of PUBSUB that counts listeners; NUMSUB if there is none
-- Returns:   nil or the token: granted; >= -1 busy, the TTL (-1 never expires), for a waiter with the
--            number of listeners; -3 the hold does not exist
-- Publishes: nothing
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  if ARGV[3] ~= '1' then return -3 end
  local token = KEYS[2] and put_token(KEYS[2], next_token(KEYS[2]), ARGV[4])
  redis.call('HSET', KEYS[1], ARGV[1], '1')
  local ends = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if type(ends) == 'table' then
    -- PEXPIRE was denied: a lock without a TTL must not remain.
    redis.call('HDEL', KEYS[1], ARGV[1])
    return ends
  end
  return token
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  local token = KEYS[2] and next_token(KEYS[2])
  -- First and always: after a write that needs no memory, Redis does not reject the next one as out of
  -- memory.
  redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[2])))
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  return token and put_token(KEYS[2], token, ARGV[4])
end
if ARGV[3] ~= '1' then return -3 end
-- Busy, unless the key is not a lock.
return not_a_lock(KEYS[1]) or busy(left, ARGV[5], ARGV[6])
