-- Purpose:   take a mutex away from whoever holds it
-- KEYS[1]:   the mutex
-- ARGV[1]:   publish command
-- ARGV[2]:   channel
-- Returns:   the owner it was taken from, as a list of one or none
-- Publishes: 0 to the channel if there was one
local holder = redis.call('GET', KEYS[1])
if not holder then return {} end
-- Every mutex of the family ends by itself; a string that does not is somebody's data.
if redis.call('PTTL', KEYS[1]) == -1 then
  return redis.error_reply('WRONGKIND a string without a time to live')
end
redis.call('DEL', KEYS[1])
redis.pcall(ARGV[1], ARGV[2], '0')
return { holder }
