-- Purpose:   take a lock away from whoever holds it
-- KEYS[1]:   the lock
-- ARGV[1]:   publish command
-- ARGV[2]:   channel
-- Returns:   the owners it was taken from
-- Publishes: 0 to the channel if there was one
if redis.call('HLEN', KEYS[1]) > 16 then return redis.error_reply('WRONGKIND a hash of other data') end
local owners, owned = redis.call('HKEYS', KEYS[1]), false
for _, field in ipairs(owners) do
  if field == 'mode' then return redis.error_reply('WRONGKIND a read/write lock') end
  owned = owned or string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+') ~= nil
end
if #owners == 0 then return owners end
if not owned then return redis.error_reply('WRONGKIND a hash of other data') end
redis.call('UNLINK', KEYS[1])
redis.pcall(ARGV[1], ARGV[2], '0')
return owners
