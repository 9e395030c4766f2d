-- Purpose:   create a semaphore, or change how many permits it has
-- KEYS[1]:   the semaphore
-- KEYS[2]:   what was answered to its requests
-- KEYS[3]:   which permits are taken until when, if they have ids
-- KEYS[4]:   the mark of a temporary semaphore, if they have ids; a resize makes one that lasts of it
-- ARGV[1]:   the request
-- ARGV[2]:   create; add; drain; resize: make the total so many, taken ones included
-- ARGV[3]:   how many permits
-- ARGV[4]:   time to live in ms of what is created, or empty
-- ARGV[5]:   publish command
-- ARGV[6]:   channel
-- ARGV[7..]: requests of this client that are settled and may be forgotten
-- Returns:   DONE; NOTHING; a number: the free permits, or those that were drained
-- Publishes: the free permits to the channel where they are more than before
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
  -- Whatever has ended, the sum of what is free and what is taken stays.
  local most, added = free + taken, 0
  if verb == 'create' then
    answer, over = 'NOTHING', {}
  elseif verb == 'add' then
    added = count
  elseif verb == 'resize' then
    added = count - most
  else
    -- A debt is nothing to take, and stays.
    added = -math.max(free, 0)
  end
  for _, sum in ipairs({ added, most + added, free + added }) do
    if math.abs(sum) > COUNT_MAX then return too_many() end
  end
  total = free + #over + added
  if verb == 'add' then answer = string.format('%.0f', total) end
  if verb == 'drain' then answer = string.format('%.0f', -added) end
  remember(KEYS[2], ARGV[1], answer, { unpack(ARGV, 7) })
  -- Not SET: it would take the time to live off.
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
  -- Permits of an earlier one of this name are not permits of this one.
  if KEYS[3] then redis.call('UNLINK', KEYS[3], KEYS[4]) end
  if ARGV[4] == '' then
    redis.call('SET', KEYS[1], ARGV[3])
  else
    redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
  end
else
  return unset()
end
if total > math.max(free or 0, 0) then redis.pcall(ARGV[5], ARGV[6], total) end
return answer
