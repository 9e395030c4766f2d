-- Purpose:   releases holds of a lock; without any left it is free
-- KEYS[1]:   the lock
-- ARGV[1]:   owner
-- ARGV[2]:   hold count that remains; no change if the stored count is not greater
-- ARGV[3]:   publish command
-- ARGV[4]:   channel
-- ARGV[5]:   TTL in ms if holds remain, or empty
-- ARGV[6]:   1 to set that TTL even if no hold is released
-- Returns:   >= 0 freed, the number of notified subscribers (-1: could not notify); KEPT; nil not held;
--            a field: the holder
-- Publishes: 0 to the channel when freed
if ARGV[2] == '0' then
  -- Deleting the last field deletes the key. A field of another owner, which a plain lock never has,
  -- remains.
  if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then return notify(ARGV[3], ARGV[4], '0') end
else
  local held = redis.call('HGET', KEYS[1], ARGV[1])
  if held then
    local fewer = tonumber(held) > tonumber(ARGV[2])
    -- First: after a write that needs no memory, Redis does not reject the next one as out of memory.
    local ttl = ARGV[5] ~= '' and tonumber(ARGV[5]) or redis.call('PTTL', KEYS[1])
    if ttl > 0 and (fewer or ARGV[6] == '1') then redis.call('PEXPIRE', KEYS[1], ttl) end
    if fewer then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
    return redis.status_reply('KEPT')
  end
end
if redis.call('HLEN', KEYS[1]) > 16 then return nil end
return redis.call('HKEYS', KEYS[1])[1]
