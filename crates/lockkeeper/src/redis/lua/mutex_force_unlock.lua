-- Purpose:   force-releases a mutex
-- KEYS[1]:   the mutex
-- ARGV[1]:   publish command
-- ARGV[2]:   channel
-- ARGV[3]:   prefix of the notice channels of clients
-- ARGV[4]:   reason, on one line
-- ARGV[5..]: the only owners from which it may be released; any if there are none
-- Returns:   the former owner, as a list of one or none; 'other' if the holder is another
-- Publishes: 0 to the channel if the lock was held; a notice to the client of each owner. From the
--            script, so that they are notified even if its answer is lost
local holder = redis.call('GET', KEYS[1])
if not holder then return {} end
-- Every mutex of the Redlock family has a TTL; a string without one is other data.
if redis.call('PTTL', KEYS[1]) == -1 then
  return redis.error_reply('WRONGKIND a string without a time to live')
end
if not holders_match({ holder }, ARGV, 5) then return 'other' end
redis.call('DEL', KEYS[1])
notify(ARGV[1], ARGV[2], '0')
local client = string.match(holder, '^[%x%-]+')
if client then redis.pcall('PUBLISH', ARGV[3] .. client, 'revoked ' .. holder .. ' ' .. ARGV[4]) end
return { holder }
