-- Purpose:   take a lock away from whoever holds it
-- KEYS[1]:   the lock
-- ARGV[1]:   publish command
-- ARGV[2]:   channel
-- ARGV[3]:   what the notice channels of clients begin with
-- ARGV[4]:   why, on one line
-- ARGV[5..]: from whom only, if not from anybody
-- Returns:   the owners it was taken from; other if others hold it
-- Publishes: 0 to the channel if there was one; a notice to the client of each owner. Here, so that
--            they are told though the answer to this may be lost
if redis.call('HLEN', KEYS[1]) > 16 then return redis.error_reply('WRONGKIND a hash of other data') end
local owners, owned = redis.call('HKEYS', KEYS[1]), false
for _, field in ipairs(owners) do
  if field == 'mode' then return redis.error_reply('WRONGKIND a read/write lock') end
  owned = owned or string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+') ~= nil
end
if #owners == 0 then return owners end
if not owned then return redis.error_reply('WRONGKIND a hash of other data') end
if not meant(owners, ARGV, 5) then return 'other' end
redis.call('UNLINK', KEYS[1])
redis.pcall(ARGV[1], ARGV[2], '0')
for _, owner in ipairs(owners) do
  local client = string.match(owner, '^[%x%-]+')
  if client then redis.pcall('PUBLISH', ARGV[3] .. client, 'revoked ' .. owner .. ' ' .. ARGV[4]) end
end
return owners
