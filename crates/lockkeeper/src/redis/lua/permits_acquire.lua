-- Purpose:   acquires permits with ids, or repeats that
-- KEYS[1]:   the semaphore
-- KEYS[2]:   acquired permits with their expiry
-- KEYS[3]:   mark of a temporary semaphore
-- ARGV[1]:   the ids, 16 bytes each
-- ARGV[2]:   TTL in ms; never shortens the stored TTL
-- ARGV[3]:   publish command
-- ARGV[4]:   channel
-- ARGV[5]:   number of permits of a temporary semaphore for this request, which creates it if there is
--            none; or empty. It is stored only if permits are acquired
-- ARGV[6]:   form of PUBSUB that counts listeners, if the caller waits; or empty
-- Returns:   nil granted; > 0 busy, the ms until a permit expires, or BUSY, for a waiter with the number
--            of listeners; -3 some no longer exist
-- Publishes: the number of free permits to the channel, if it has grown and is not zero
local free, wrong = number(KEYS[1])
if wrong then return wrong end
local now, ids = clock(), split(ARGV[1])
local present, first, found = look(KEYS[2], ids, now)
local limit = tonumber(ARGV[5])
if present == 0 and not free then
  if not limit then return unset() end
  if limit < #ids then return redis.status_reply('BUSY') end
  -- First, and with a TTL: if one of these writes is rejected, nothing else has changed.
  redis.call('SET', KEYS[3], '1', 'PX', ARGV[2])
  -- Permits of an earlier semaphore of this name do not belong to this one.
  redis.call('UNLINK', KEYS[2])
  redis.call('SET', KEYS[1], string.format('%.0f', limit - #ids), 'PX', ARGV[2])
  for _, id in ipairs(ids) do set_end(KEYS[2], id, now + tonumber(ARGV[2])) end
  keep(KEYS[1], KEYS[2], KEYS[3], now)
  return nil
end
local over = ended(free, KEYS[2], now, #ids)
local total = free and free + #over
local reach, added = total, 0
if limit and present == 0 and is_temporary(KEYS[1], KEYS[3]) then
  -- The sum of free and acquired permits does not depend on the sweep of expired ones. Not by way of
  -- the free ones: a sum beyond 2^53 would be rounded.
  reach = limit + #over - redis.call('ZCARD', KEYS[2])
  added = reach - total
end
local takes = present == 0 and reach >= #ids
if takes then total = reach - #ids end
-- Changes nothing, but fails for a user without permission for the writes below.
redis.call('ZADD', KEYS[2], 'XX', 0, '')
-- First: if Redis rejects it as out of memory, nothing has changed.
if takes and added ~= 0 then
  -- Two exact steps: their difference may be beyond 2^53. (-0 is not an integer.)
  redis.call('INCRBY', KEYS[1], 0 - free)
  redis.call('INCRBY', KEYS[1], total)
elseif free ~= total then
  redis.call('INCRBY', KEYS[1], total - free)
end
remove(KEYS[2], over)
if takes or first then
  local till = now + tonumber(ARGV[2])
  for _, id in ipairs(ids) do set_end(KEYS[2], id, math.max(found[id] or till, till)) end
end
if takes then
  -- They must not expire before the semaphore: it would lose the acquired permits forever.
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 then
    redis.call('PERSIST', KEYS[2])
  elseif redis.call('PTTL', KEYS[2]) < left then
    redis.call('PEXPIRE', KEYS[2], left)
  end
end
if free then keep(KEYS[1], KEYS[2], KEYS[3], now) end
local more = #over > 0 or (takes and added > 0)
if more and total > 0 then notify(ARGV[3], ARGV[4], total) end
if takes or first then return nil end
-- Some were released or have expired since: the request is late.
if present > 0 then return -3 end
local score = tonumber(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2])
local left = redis.status_reply('BUSY')
if score and score < ENDLESS then left = math.max(math.ceil(score - now), 1) end
return busy(left, ARGV[6] ~= '' and ARGV[4], ARGV[6])
