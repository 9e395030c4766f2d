-- Purpose:   creates a semaphore, or changes its number of permits
-- KEYS[1]:   the semaphore
-- KEYS[2]:   answers to its requests
-- KEYS[3]:   acquired permits with their expiry, if they have ids
-- KEYS[4]:   mark of a temporary semaphore, if permits have ids; a resize makes the semaphore permanent
-- ARGV[1]:   id of the request
-- ARGV[2]:   create; add; drain; resize: set the total, acquired permits included
-- ARGV[3]:   number of permits
-- ARGV[4]:   TTL in ms if created, or empty
-- ARGV[5]:   publish command
-- ARGV[6]:   channel
-- ARGV[7..]: settled requests of this client, whose answers may be deleted
-- Returns:   DONE; NOTHING; a number: the free permits, or the drained ones
-- Publishes: the number of free permits to the channel, if it has grown
local past = recall(KEYS[2], ARGV[1])
if past then return past end
local free, wrong = number(KEYS[1])
if wrong then return wrong end
local taken = KEYS[3] and redis.call('ZCARD', KEYS[3]) or 0
local verb, count = ARGV[2], tonumber(ARGV[3])
local answer, total = 'DONE', count
if free then
  local now = clock()
  local over = KEYS[3] and ended(free, KEYS[3], now) or {}
  -- The sum of free and acquired permits does not depend on the sweep of expired ones.
  local most, added = free + taken, 0
  if verb == 'create' then
    answer, over = 'NOTHING', {}
  elseif verb == 'add' then
    added = count
  elseif verb == 'resize' then
    added = count - most
  else
    -- A negative number of free permits cannot be drained and stays.
    added = -math.max(free, 0)
  end
  for _, sum in ipairs({ added, most + added, free + added }) do
    if math.abs(sum) > COUNT_MAX then return too_many() end
  end
  total = free + #over + added
  if verb == 'add' then answer = string.format('%.0f', total) end
  if verb == 'drain' then answer = string.format('%.0f', -added) end
  remember(KEYS[2], ARGV[1], answer, { unpack(ARGV, 7) })
  -- Not SET, which would remove the TTL.
  if total ~= free then redis.call('INCRBY', KEYS[1], total - free) end
  if #over > 0 then remove(KEYS[3], over) end
  if KEYS[4] and verb == 'resize' and is_temporary(KEYS[1], KEYS[4]) then
    redis.call('PERSIST', KEYS[1])
    redis.call('PERSIST', KEYS[3])
    redis.call('UNLINK', KEYS[4])
  elseif KEYS[4] then
    keep(KEYS[1], KEYS[3], KEYS[4], now)
  end
elseif verb == 'create' or verb == 'resize' then
  remember(KEYS[2], ARGV[1], answer, { unpack(ARGV, 7) })
  -- Permits of an earlier semaphore of this name do not belong to this one.
  if KEYS[3] then redis.call('UNLINK', KEYS[3], KEYS[4]) end
  if ARGV[4] == '' then
    redis.call('SET', KEYS[1], ARGV[3])
  else
    redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
  end
else
  return unset()
end
if total > math.max(free or 0, 0) then notify(ARGV[5], ARGV[6], total) end
return answer
