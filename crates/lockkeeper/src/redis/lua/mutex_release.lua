-- Purpose:   releases a mutex, or sets its remaining TTL
-- KEYS[1]:   the mutex
-- ARGV[1]:   owner
-- ARGV[2]:   publish command
-- ARGV[3]:   channel
-- ARGV[4]:   TTL in ms after which it expires, or empty to release it
-- Returns:   >= 0 freed, the number of notified subscribers (-1: could not notify); KEPT; nil not held;
--            a value: the holder
-- Publishes: 0 to the channel when freed
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then return holder end
if ARGV[4] ~= '' then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return redis.status_reply('KEPT')
end
redis.call('DEL', KEYS[1])
return notify(ARGV[2], ARGV[3], '0')
