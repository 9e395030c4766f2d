-- Purpose:   releases holds of a reader; without any holder left the lock is free
-- KEYS[1]:   the lock
-- ARGV[1]:   owner
-- ARGV[2]:   hold count that remains; no change if the stored count is not greater
-- ARGV[3]:   publish command
-- ARGV[4]:   channel
-- ARGV[5]:   prefix of the keys of single holds
-- ARGV[6]:   TTL in ms if holds remain, or empty
-- ARGV[7]:   1 to set that TTL even if no hold is released
-- Returns:   >= 0 freed, the number of notified subscribers (-1: could not notify); KEPT; nil not held;
--            an owner: the holder
-- Publishes: 0 to the channel when the lock is free
local mode, wrong, left = settled(KEYS[1], ARGV[5])
if wrong then return wrong end
local held = mode and tonumber(redis.call('HGET', KEYS[1], ARGV[1]))
if not held then return holder(KEYS[1]) end
local own = life(ARGV[5], ARGV[1], held)
-- The lock expires with its last reader. If that is another one, or a writer, the expiry stays.
local last = mode == 'read' and own >= left - 2
local stay = tonumber(ARGV[2])
if stay > 0 then
  -- An expired reader keeps nothing: a writer may acquire the lock at any moment.
  if own == -2 then return nil end
  local ttl = tonumber(ARGV[6])
  -- Writes that need no memory first: Redis then does not reject the next one as out of memory.
  if held > stay then
    drop(ARGV[5], ARGV[1], stay + 1, held)
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  elseif ARGV[7] ~= '1' then
    ttl = nil
  end
  if ttl then
    keep(ARGV[5], ARGV[1], math.min(stay, held), ttl)
    if last then
      local _, longest = readers(KEYS[1], ARGV[5])
      ends_in(KEYS[1], longest)
    elseif left < ttl then
      ends_in(KEYS[1], ttl)
      if mode == 'write' then outlast(KEYS[1], ARGV[5], left) end
    end
  end
  return redis.status_reply('KEPT')
end
local writer = mode == 'write' and writer_of(KEYS[1])
local written = writer and write_left(KEYS[1], ARGV[5], writer, nil)
redis.call('HDEL', KEYS[1], ARGV[1])
drop(ARGV[5], ARGV[1], 1, held)
if written then
  -- This reader may have made the lock outlast the writer, which is no longer needed.
  local _, longest = readers(KEYS[1], ARGV[5])
  ends_in(KEYS[1], math.max(written, longest))
  if longest <= written then redis.call('DEL', write_end(ARGV[5], writer)) end
end
-- Another holder beside `mode` remains, and the expiry of the lock was not that of this reader.
if not last and redis.call('HLEN', KEYS[1]) > 1 then return 0 end
local living, longest = readers(KEYS[1], ARGV[5])
if #living > 0 then
  ends_in(KEYS[1], longest)
  return 0
end
redis.call('DEL', KEYS[1])
return notify(ARGV[3], ARGV[4], '0')
