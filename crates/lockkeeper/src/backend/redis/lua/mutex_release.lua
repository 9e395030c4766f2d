-- Purpose:   free a mutex, or leave it standing for a while
-- KEYS[1]:   the mutex
-- ARGV[1]:   owner
-- ARGV[2]:   publish command
-- ARGV[3]:   channel
-- ARGV[4]:   time to live in ms to leave it for, or empty to free it
-- Returns:   >= 0 freed, how many were told (-1: could not tell); KEPT; nil not held by anybody;
--            a value: held by that one
-- Publishes: 0 to the channel when freed
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then return holder end
if ARGV[4] ~= '' then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return redis.status_reply('KEPT')
end
redis.call('DEL', KEYS[1])
local told = redis.pcall(ARGV[2], ARGV[3], '0')
if type(told) == 'table' then return -1 end
return told
