-- Purpose:   force-releases a lock
-- KEYS[1]:   the lock
-- ARGV[1]:   publish command
-- ARGV[2]:   channel
-- ARGV[3]:   prefix of the notice channels of clients
-- ARGV[4]:   reason, on one line
-- ARGV[5..]: the only owners from which it may be released; any if there are none
-- Returns:   the former owners; 'other' if the holders are others
-- Publishes: 0 to the channel if the lock was held; a notice to the client of each owner. From the
--            script, so that they are notified even if its answer is lost
if redis.call('HLEN', KEYS[1]) > 16 then return redis.error_reply('WRONGKIND a hash of other data') end
local owners, owned = redis.call('HKEYS', KEYS[1]), false
for _, field in ipairs(owners) do
  if field == 'mode' then return redis.error_reply('WRONGKIND a read/write lock') end
  owned = owned or string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+') ~= nil
end
if #owners == 0 then return owners end
if not owned then return redis.error_reply('WRONGKIND a hash of other data') end
if not holders_match(owners, ARGV, 5) then return 'other' end
redis.call('UNLINK', KEYS[1])
notify(ARGV[1], ARGV[2], '0')
for _, owner in ipairs(owners) do
  local client = string.match(owner, '^[%x%-]+')
  if client then redis.pcall('PUBLISH', ARGV[3] .. client, 'revoked ' .. owner .. ' ' .. ARGV[4]) end
end
return owners
