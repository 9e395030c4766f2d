-- Purpose:   take holds off a lock; without any left it is free
-- KEYS[1]:   the lock
-- ARGV[1]:   owner
-- ARGV[2]:   hold count that stays; no more than this stored means no change
-- ARGV[3]:   publish command
-- ARGV[4]:   channel
-- ARGV[5]:   time to live in ms where holds stay, or empty
-- ARGV[6]:   1 to set that though no hold is taken off
-- Returns:   >= 0 freed, how many were told (-1: could not tell); KEPT; nil not held by anybody;
--            a field: held by that one
-- Publishes: 0 to the channel when freed
if ARGV[2] == '0' then
  -- The last field takes the key along; a field of somebody else, which a plain lock never has,
  -- stays.
  if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
    local told = redis.pcall(ARGV[3], ARGV[4], '0')
    if type(told) == 'table' then return -1 end
    return told
  end
else
  local held = redis.call('HGET', KEYS[1], ARGV[1])
  if held then
    local fewer = tonumber(held) > tonumber(ARGV[2])
    -- First, because after a write that needs no memory the next is not refused for want of it.
    local ttl = ARGV[5] ~= '' and tonumber(ARGV[5]) or redis.call('PTTL', KEYS[1])
    if ttl > 0 and (fewer or ARGV[6] == '1') then redis.call('PEXPIRE', KEYS[1], ttl) end
    if fewer then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
    return redis.status_reply('KEPT')
  end
end
if redis.call('HLEN', KEYS[1]) > 16 then return nil end
return redis.call('HKEYS', KEYS[1])[1]
