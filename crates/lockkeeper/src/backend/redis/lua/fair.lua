-- Purpose:   part of the scripts of the fair lock: its queue
-- Returns:   nothing by itself
-- Publishes: nothing
-- Redisson's waiters keep their place until a time; ours beside that only while they are heard of,
-- so that one that died does not stop the others for minutes.
local WAIT, SILENT, STALLED, LASTS = 300000, 3000, 1500, 60000

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Whether silence means death: not if nobody at all was heard of, though all speak about once a second.
-- Then the server itself stood still, or nobody could reach it, and everybody gets another 3 s; once.
local function deadly(seen, grace, now)
  local left = redis.call('PTTL', grace)
  if left >= 0 then return left <= LASTS - SILENT end
  local newest = redis.call('ZREVRANGE', seen, 0, 0, 'WITHSCORES')[2]
  if not newest or tonumber(newest) >= now - STALLED then return true end
  redis.call('SET', grace, '1', 'PX', LASTS)
  return false
end

-- The first that still waits; whoever is dead in front of it is dropped. And whether any was.
local function head(queue, timeouts, seen, now, silence_kills)
  local dropped = false
  while true do
    local first = redis.call('LINDEX', queue, 0)
    if not first then return nil, dropped end
    local heard = redis.call('ZSCORE', seen, first)
    local ends = redis.call('ZSCORE', timeouts, first)
    local alive = ends and tonumber(ends) > now
    if heard then alive = not silence_kills or tonumber(heard) >= now - SILENT end
    if alive then return first, dropped end
    redis.call('LPOP', queue)
    redis.call('ZREM', timeouts, first)
    redis.call('ZREM', seen, first)
    dropped = true
  end
end

-- Whether somebody waits who is not ours. Redisson takes its wait time off everybody's places at each
-- take, which only its own waiters need: among ours a take costs the same however many wait. Redisson
-- may have dropped one of ours without a word; it is found among those not heard of for longest.
local function strangers(queue, timeouts, seen)
  local waiting = redis.call('LLEN', queue)
  redis.call('ZCARD', timeouts)
  for _, owner in ipairs(redis.call('ZRANGE', seen, 0, 1)) do
    if not redis.call('ZSCORE', timeouts, owner) then redis.call('ZREM', seen, owner) end
  end
  return waiting > redis.call('ZCARD', seen)
end

-- To be called when the head has changed. A waiter of ours at the head keeps its position in Redisson's
-- view for as long as if it had come now, and no longer: among ours alone a take lowers no score, so
-- that the score of the next is too high by WAIT for each take since it came. Where a stranger waits,
-- the others' scores may be too high by the same, if they were counted from this one: they are lowered
-- with it, but nobody to less than its position needs, for each take lowers everybody by WAIT.
local function lower_head(queue, timeouts, seen, now, left)
  local first = redis.call('LINDEX', queue, 0)
  if not first or not redis.call('ZSCORE', seen, first) then return end
  local most = now + math.max(left, 0) + WAIT
  local excess = tonumber(redis.call('ZSCORE', timeouts, first) or most) - most
  if excess < 1000 then return end
  redis.call('ZADD', timeouts, string.format('%.0f', most), first)
  if not strangers(queue, timeouts, seen) then return end
  for position, other in ipairs(redis.call('LRANGE', queue, 1, -1)) do
    local ends = tonumber(redis.call('ZSCORE', timeouts, other) or most)
    local lowered = math.max(ends - excess, most + position * WAIT)
    if lowered < ends then redis.call('ZADD', timeouts, string.format('%.0f', lowered), other) end
  end
end

-- If all who wait die, what they leave ends. Redisson's waiters rely on a queue without an end.
local function lasting(queue, timeouts, seen)
  local ours = not strangers(queue, timeouts, seen)
  for _, key in ipairs({ queue, timeouts }) do
    if ours then redis.call('PEXPIRE', key, LASTS) else redis.call('PERSIST', key) end
  end
  redis.call('PEXPIRE', seen, ours and LASTS or 86400000)
end

