-- Purpose:   part of the scripts of the fair lock: its queue
-- Returns:   nothing by itself
-- Publishes: nothing
-- The score in `timeouts` is the expiry of a queue position. Our own waiters also need heartbeats in
-- `seen`, so that a stale one does not block the others for minutes.
local WAIT, SILENT, STALLED, LASTS = 300000, 3000, 1500, 60000

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Whether waiters without a heartbeat are stale. Not if no waiter at all sent one, because each does
-- about once a second: then the server was stalled or unreachable, and all waiters get 3 s more, once a
-- minute.
local function deadly(seen, grace, now)
  local left = redis.call('PTTL', grace)
  if left >= 0 then return left <= LASTS - SILENT end
  local newest = redis.call('ZREVRANGE', seen, 0, 0, 'WITHSCORES')[2]
  if not newest or tonumber(newest) >= now - STALLED then return true end
  redis.call('SET', grace, '1', 'PX', LASTS)
  return false
end

-- Drops stale waiters from the front. Returns the first remaining waiter, and whether any was dropped.
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

-- Whether a waiter of Redisson is in the queue. At each acquire Redisson lowers the scores of all
-- waiters by its wait time. Only its own waiters need that: among ours alone, the cost of an acquire
-- does not depend on the length of the queue. Redisson may have dropped one of our waiters without
-- notice; its entry in `seen` is then among the oldest.
local function strangers(queue, timeouts, seen)
  local waiting = redis.call('LLEN', queue)
  redis.call('ZCARD', timeouts)
  for _, owner in ipairs(redis.call('ZRANGE', seen, 0, 1)) do
    if not redis.call('ZSCORE', timeouts, owner) then redis.call('ZREM', seen, owner) end
  end
  return waiting > redis.call('ZCARD', seen)
end

-- Must be called when the head has changed. The score of our waiter at the head becomes that of a waiter
-- which arrives now: among ours alone an acquire lowers no score, so the score is too high by WAIT for
-- each acquire since the waiter arrived. If Redisson's waiters are in the queue, the scores of the
-- others may be too high by the same amount, if they were computed from this one. They are lowered, too,
-- but not below the value for their position, because each later acquire lowers all of them by WAIT.
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

-- Makes the queue expire if all waiters are ours, so that no orphan is left when they die. Redisson's
-- waiters rely on a queue without a TTL.
local function lasting(queue, timeouts, seen)
  local ours = not strangers(queue, timeouts, seen)
  for _, key in ipairs({ queue, timeouts }) do
    if ours then redis.call('PEXPIRE', key, LASTS) else redis.call('PERSIST', key) end
  end
  redis.call('PEXPIRE', seen, ours and LASTS or 86400000)
end

