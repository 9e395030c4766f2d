-- Purpose:   share a lock, re-enter a shared one, nest in one's own exclusive hold, or repeat any
-- KEYS[1]:   the lock
-- KEYS[2]:   the writers that wait for it
-- KEYS[3]:   for how long readers have waited, and whether it is their turn
-- ARGV[1]:   owner
-- ARGV[2]:   time to live in ms; never shortens what there is
-- ARGV[3]:   hold count the owner will have; above 1 only a held lock is re-entered
-- ARGV[4]:   what the keys of single holds begin with
-- ARGV[5]:   owner of the exclusive hold it belongs to, or empty
-- ARGV[6]:   1 if the reader waits
-- Returns:   nil granted; >= -1 busy, for how long (-1 endless); -3 the hold is gone
-- Publishes: nothing
local mode, wrong, left = settled(KEYS[1], ARGV[4])
if wrong then return wrong end
local ttl, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local held = mode and tonumber(redis.call('HGET', KEYS[1], ARGV[1]))
if held then
  local own = life(ARGV[4], ARGV[1], held)
  if own == -2 and count > 1 then return -3 end
  -- All holds of a reader live equally long, whichever of them goes first.
  ttl = math.max(own, ttl)
  -- First, and in any case, so that the next write is not refused for want of memory.
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
  -- Not permitted: a lock without an end must not stay.
  redis.call('HDEL', KEYS[1], ARGV[1], mode and ARGV[1] or 'mode')
  redis.call('DEL', key)
  return ends
end
if mode == 'write' and ttl > left then outlast(KEYS[1], ARGV[4], left) end
return nil
