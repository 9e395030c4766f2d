-- Purpose:   acquires a read lock, re-enters it, nests it in the owner's write hold, or repeats any
-- KEYS[1]:   the lock
-- KEYS[2]:   its waiting writers
-- KEYS[3]:   how long readers have waited, and whether it is their turn
-- ARGV[1]:   owner
-- ARGV[2]:   TTL in ms; never shortens the stored TTL
-- ARGV[3]:   hold count that the owner will have; above 1 only a held lock is re-entered
-- ARGV[4]:   prefix of the keys of single holds
-- ARGV[5]:   owner of the write hold that it is nested in, or empty
-- ARGV[6]:   1 if the reader waits
-- Returns:   nil granted; >= -1 busy, the ms to wait (-1 never expires); -3 the hold does not exist
-- Publishes: nothing
local mode, wrong, left = settled(KEYS[1], ARGV[4])
if wrong then return wrong end
local ttl, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local held = mode and tonumber(redis.call('HGET', KEYS[1], ARGV[1]))
if held then
  local own = life(ARGV[4], ARGV[1], held)
  if own == -2 and count > 1 then return -3 end
  -- All holds of a reader get the same TTL, because they may be released in any order.
  ttl = math.max(own, ttl)
  -- First and always: after a write that needs no memory, Redis does not reject the next one as out of
  -- memory.
  redis.call('PEXPIRE', KEYS[1], math.max(left, ttl))
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  keep(ARGV[4], ARGV[1], count, ttl)
  drop(ARGV[4], ARGV[1], count + 1, held)
  if mode == 'write' and ttl > left then outlast(KEYS[1], ARGV[4], left) end
  return nil
end
if count > 1 then return -3 end
local nested = mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[5] .. ':write') == 1
if not nested and (mode == 'write' or ARGV[5] == '') then
  local written = mode == 'write' and write_left(KEYS[1], ARGV[4], writer_of(KEYS[1]) or '', left)
  local out = stays_out(KEYS[2], KEYS[3], written, ARGV[6] == '1')
  if out then return out end
end
local key = hold(ARGV[4], ARGV[1], 1)
redis.call('SET', key, '1', 'PX', ttl)
local noted = redis.pcall('HSET', KEYS[1], 'mode', mode or 'read', ARGV[1], '1')
if type(noted) == 'table' then
  redis.call('DEL', key)
  return noted
end
local ends = redis.pcall('PEXPIRE', KEYS[1], math.max(left, ttl))
if type(ends) == 'table' then
  -- PEXPIRE was denied: a lock without a TTL must not remain.
  redis.call('HDEL', KEYS[1], ARGV[1], mode and ARGV[1] or 'mode')
  redis.call('DEL', key)
  return ends
end
if mode == 'write' and ttl > left then outlast(KEYS[1], ARGV[4], left) end
return nil
