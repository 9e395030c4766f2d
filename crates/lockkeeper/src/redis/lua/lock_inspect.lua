-- Purpose:   reads the holders of a lock, their hold counts and the TTL
-- KEYS[1]:   the lock
-- Returns:   TTL (-1 never expires, -2 free), then alternating owner and hold count
-- Publishes: nothing
if redis.call('HLEN', KEYS[1]) > 16 then return redis.error_reply('WRONGKIND a hash of other data') end
local fields, owned = redis.call('HGETALL', KEYS[1]), false
for i = 1, #fields, 2 do
  if fields[i] == 'mode' then return redis.error_reply('WRONGKIND a read/write lock') end
  owned = owned or string.find(fields[i], '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+') ~= nil
end
if #fields > 0 and not owned then return redis.error_reply('WRONGKIND a hash of other data') end
table.insert(fields, 1, redis.call('PTTL', KEYS[1]))
return fields
