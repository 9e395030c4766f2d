-- Purpose:   part of the scripts of the fair lock: its queue
-- Returns:   nothing by itself
-- Publishes: nothing
-- Redisson's waiters keep their place until a time; ours beside that only while they are heard of,
-- so that one that died does not stop the others for minutes.
local WAIT, SILENT = 300000, 3000

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The first that still waits; whoever is dead in front of it is dropped. And whether any was.
local function head(queue, timeouts, seen, now)
  local dropped = false
  while true do
    local first = redis.call('LINDEX', queue, 0)
    if not first then return nil, dropped end
    local heard = redis.call('ZSCORE', seen, first)
    local ends = redis.call('ZSCORE', timeouts, first)
    local alive = ends and tonumber(ends) > now
    if heard then alive = tonumber(heard) >= now - SILENT end
    if alive then return first, dropped end
    redis.call('LPOP', queue)
    redis.call('ZREM', timeouts, first)
    redis.call('ZREM', seen, first)
    dropped = true
  end
end

-- Whether somebody waits who is not ours. Redisson takes its wait time off everybody's places at each
-- take, which only its own waiters need: among ours a take costs the same however many wait.
local function strangers(queue, seen)
  return redis.call('LLEN', queue) > redis.call('ZCARD', seen)
end

