-- Purpose:   part of the scripts of permits with ids: the acquired permits and their expiry
-- Returns:   nothing
-- Publishes: nothing
-- The expiry of a permit that never expires, as Redisson writes it.
local ENDLESS = 922337203685477

local function split(ids)
  local list = {}
  for at = 1, #ids, 16 do list[#list + 1] = string.sub(ids, at, at + 15) end
  return list
end

-- Returns how many exist, expired ones included; the first expiry if all exist and none has expired; the
-- expiry of each.
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

-- Returns expired permits, at least as many as wanted if there are so many; the rest is left to later
-- requests. Without a semaphore they count for nothing.
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

-- Whether the semaphore was created by an acquire. One without a TTL is not temporary even if the mark
-- exists: another client has set it up since.
local function is_temporary(key, mark)
  return redis.call('PTTL', key) >= 0 and redis.call('EXISTS', mark) == 1
end

-- A temporary semaphore expires with its last permit, and is deleted when the last one is released.
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

