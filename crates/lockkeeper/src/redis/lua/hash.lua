-- Purpose:   part of the scripts that must distinguish a lock from other hashes
-- Returns:   nothing by itself
-- Publishes: nothing
-- A plain lock has one field in the form of an owner; a large hash is other data. Returns an error, or
-- nothing for a lock.
local function not_a_lock(key)
  if redis.call('HLEN', key) > 16 then return redis.error_reply('WRONGKIND a hash of other data') end
  local owned = false
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if field == 'mode' then return redis.error_reply('WRONGKIND a read/write lock') end
    owned = owned or string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+') ~= nil
  end
  if not owned then return redis.error_reply('WRONGKIND a hash of other data') end
end

