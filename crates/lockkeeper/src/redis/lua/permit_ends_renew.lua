-- Purpose:   renews or checks a hold of permits, where a script with several keys would not run
-- KEYS[1]:   acquired permits with their expiry
-- ARGV[1]:   the ids, 16 bytes each
-- ARGV[2]:   TTL in ms, never shortens the stored TTL; 0 only checks
-- Returns:   >= -1 held, the TTL found (-1 never expires); -2 does not exist
-- Publishes: nothing
local now, ids, ttl = clock(), split(ARGV[1]), tonumber(ARGV[2])
local _, first, found = look(KEYS[1], ids, now)
if not first then return -2 end
if ttl > 0 then
  -- After a write that needs no memory, Redis does not reject the next one as out of memory.
  redis.call('ZREM', KEYS[1], '')
  for _, id in ipairs(ids) do set_end(KEYS[1], id, math.max(found[id], now + ttl)) end
end
return first >= ENDLESS and -1 or math.ceil(first - now)
