-- Purpose:   records heartbeats of waiters, drops stale waiters before them, and finds out whose turn it
--            is
-- KEYS[i]:   for each lock: the lock
-- KEYS[i+1]: its queue
-- KEYS[i+2]: expiry of queue positions, as Redisson stores it
-- KEYS[i+3]: last heartbeats of our waiters
-- KEYS[i+4]: exists during a grace period for stale waiters, and until the next one may begin
-- ARGV[1]:   publish command
-- ARGV[at]:  for each lock: its channel; a waiter's own channel has a colon and its id appended
-- ARGV[at+1]: number of waiters
-- ARGV[j]:   their ids
-- Returns:   for each waiter: -4 keep waiting; -5 try again, because it is its turn or its queue
--            position was lost
-- Publishes: 0 to the first waiter of each free lock
local answers, now, at = {}, now_ms(), 2
for i = 1, #KEYS, 5 do
  local lock, queue, timeouts, seen = KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3]
  local channel, count = ARGV[at], tonumber(ARGV[at + 1])
  -- Also fails before the first write if one of the keys has another type.
  local mixed = strangers(queue, timeouts, seen)
  local left, silence_kills = redis.call('PTTL', lock), deadly(seen, KEYS[i + 4], now)
  local ahead = now + math.max(left, 0)
  local most = ahead + redis.call('LLEN', queue) * WAIT
  for j = at + 2, at + 1 + count do
    local ends = redis.call('ZSCORE', timeouts, ARGV[j])
    if ends then
      redis.call('ZADD', seen, now, ARGV[j])
      -- Redisson drops a waiter whose score has passed, even if it sends heartbeats.
      if tonumber(ends) < now + WAIT then
        redis.call('ZADD', timeouts, string.format('%.0f', ahead + WAIT), ARGV[j])
      end
      -- Among ours alone no acquire lowers the score, and Redisson's next waiter computes its own from
      -- it.
      if not mixed and tonumber(ends) >= most + 1000 then
        redis.call('ZADD', timeouts, string.format('%.0f', most), ARGV[j])
      end
    end
  end
  local first, dropped = head(queue, timeouts, seen, now, silence_kills)
  if dropped then lower_head(queue, timeouts, seen, now, left) end
  if left == -2 and first then notify(ARGV[1], channel .. ':' .. first, '0') end
  for j = at + 2, at + 1 + count do
    local due = left == -2 and first == ARGV[j] or not redis.call('ZSCORE', timeouts, ARGV[j])
    answers[#answers + 1] = due and -5 or -4
  end
  lasting(queue, timeouts, seen)
  at = at + 2 + count
end
return answers
