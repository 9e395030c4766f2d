-- Purpose:   raises the last fencing token of a lock, on a member of a quorum
-- KEYS[1]:   the token
-- ARGV[1]:   the least token that it will have
-- ARGV[2]:   TTL in ms, or empty
-- Returns:   the token that it has
-- Publishes: nothing
local last = redis.call('GET', KEYS[1])
if last and (tonumber(last) or 0) >= tonumber(ARGV[1]) then return last end
if ARGV[2] == '' then
  redis.call('SET', KEYS[1], ARGV[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return ARGV[1]
