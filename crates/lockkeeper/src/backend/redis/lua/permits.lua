-- Purpose:   part of the scripts of permits with ids: which are taken until when
-- Returns:   nothing
-- Publishes: nothing
-- The end of a permit that has none, as Redisson writes it.
local ENDLESS = 922337203685477

local function split(ids)
  local list = {}
  for at = 1, #ids, 16 do list[#list + 1] = string.sub(ids, at, at + 15) end
  return list
end

-- How many are there, ended ones included; the first end if all are there and none has ended; the
-- end of each.
local function look(ends, ids, now)
  local found, present, first = {}, 0, nil
  for _, id in ipairs(ids) do
    local score = tonumber(redis.call('ZSCORE', ends, id) or nil)
    if score then
      found[id], present, first = score, present + 1, math.min(first or score, score)
    end
  end
  return present, present == #ids and first and first > now and first or nil, found
end

local function set_end(ends, id, score)
  redis.call('ZADD', ends, string.format('%.0f', math.min(score, ENDLESS)), id)
end

-- Some permits that have ended, as many as are wanted and a few more; the others are for the next
-- request. Where there is no semaphore they are no permits of any.
local function ended(free, ends, now, wanted)
  if not free then return {} end
  local most = math.max(wanted or 0, 100)
  return redis.call('ZRANGEBYSCORE', ends, '-inf', string.format('%.0f', now), 'LIMIT', 0, most)
end

local function remove(ends, ids)
  local removed = 0
  for _, id in ipairs(ids) do removed = removed + redis.call('ZREM', ends, id) end
  return removed
end

-- Whether acquires have made the semaphore. One without a time to live is not such a one, whatever stands
-- beside it: another client has set it up since.
local function is_temporary(key, mark)
  return redis.call('PTTL', key) >= 0 and redis.call('EXISTS', mark) == 1
end

-- A temporary semaphore lasts until its last permit ends, and goes with the last that is released.
local function keep(key, ends, mark, now)
  if not is_temporary(key, mark) then return end
  local last = tonumber(redis.call('ZRANGE', ends, -1, -1, 'WITHSCORES')[2])
  if not last or last <= now then
    redis.call('UNLINK', key, ends, mark)
    return
  end
  local left = string.format('%.0f', last - now)
  for _, part in ipairs({ key, ends, mark }) do redis.call('PEXPIRE', part, left) end
end

