-- Purpose:   releases write holds, or removes a waiting writer
-- KEYS[1]:   the lock
-- KEYS[2]:   its waiting writers
-- ARGV[1]:   owner
-- ARGV[2]:   hold count that remains; no change if the stored count is not greater
-- ARGV[3]:   publish command
-- ARGV[4]:   channel
-- ARGV[5]:   prefix of the keys of single holds
-- ARGV[6]:   TTL in ms if holds remain, or empty
-- ARGV[7]:   1 to set that TTL even if no hold is released
-- Returns:   >= 0 freed, the number of notified subscribers (-1: could not notify); KEPT; nil not held;
--            an owner: the holder
-- Publishes: 1 to the channel when freed, or when no writer keeps readers out any more
local mode, wrong = settled(KEYS[1], ARGV[5])
local field = ARGV[1] .. ':write'
if withdraw(KEYS[2], ARGV[1]) and mode ~= 'write' then notify(ARGV[3], ARGV[4], '1') end
if wrong then return wrong end
local held = tonumber(redis.call('HGET', KEYS[1], field))
if not held then return holder(KEYS[1]) end
if ARGV[2] ~= '0' then
  local fewer, ttl = held > tonumber(ARGV[2]), tonumber(ARGV[6])
  if fewer or ttl and ARGV[7] == '1' then
    local rest = redis.call('PTTL', KEYS[1])
    if ttl then
      -- The leases of nested readers stay.
      local nested = redis.call('HLEN', KEYS[1]) > 2
      local _, longest = readers(KEYS[1], ARGV[5], true)
      rest = math.max(ttl, longest)
      if nested and longest <= ttl then redis.call('DEL', write_end(ARGV[5], ARGV[1])) end
    end
    -- First: after a write that needs no memory, Redis does not reject the next one as out of memory.
    ends_in(KEYS[1], rest)
    if ttl and rest > ttl then set_write_end(KEYS[1], ARGV[5], ARGV[1], ttl) end
  end
  if fewer then redis.call('HSET', KEYS[1], field, ARGV[2]) end
  return redis.status_reply('KEPT')
end
if redis.call('HLEN', KEYS[1]) > 2 then redis.call('DEL', write_end(ARGV[5], ARGV[1])) end
local living, longest = readers(KEYS[1], ARGV[5], true)
if #living > 0 then downgrade(KEYS[1], field, longest) else redis.call('DEL', KEYS[1]) end
return notify(ARGV[3], ARGV[4], '1')
