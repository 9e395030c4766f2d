-- Purpose:   take a mutex away from whoever holds it
-- KEYS[1]:   the mutex
-- ARGV[1]:   publish command
-- ARGV[2]:   channel
-- ARGV[3]:   what the notice channels of clients begin with
-- ARGV[4]:   why, on one line
-- ARGV[5..]: from whom only, if not from anybody
-- Returns:   the owner it was taken from, as a list of one or none; other if others hold it
-- Publishes: 0 to the channel if there was one; a notice to the client of each owner. Here, so that
--            they are told though the answer to this may be lost
local holder = redis.call('GET', KEYS[1])
if not holder then return {} end
-- Every mutex of the family ends by itself; a string that does not is somebody's data.
if redis.call('PTTL', KEYS[1]) == -1 then
  return redis.error_reply('WRONGKIND a string without a time to live')
end
if not meant({ holder }, ARGV, 5) then return 'other' end
redis.call('DEL', KEYS[1])
redis.pcall(ARGV[1], ARGV[2], '0')
local client = string.match(holder, '^[%x%-]+')
if client then redis.pcall('PUBLISH', ARGV[3] .. client, 'revoked ' .. holder .. ' ' .. ARGV[4]) end
return { holder }
