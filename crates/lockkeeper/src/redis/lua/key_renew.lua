-- Purpose:   renews or checks one key of a hold, where a script with several keys would not run
-- KEYS[1]:   the key
-- ARGV[1]:   TTL in ms, never shortens the stored TTL; 0 only checks
-- ARGV[2]:   field that the key must have, or nothing
-- Returns:   >= -1 the TTL found (-1 never expires); -2 the key or its field does not exist
-- Publishes: nothing
if ARGV[2] and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return -2 end
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and left < tonumber(ARGV[1]) then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return left
