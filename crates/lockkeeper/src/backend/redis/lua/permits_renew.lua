-- Purpose:   renew or check many holds of permits; an error of one is that one's answer
-- KEYS[3i-2]: the semaphores
-- KEYS[3i-1]: which permits are taken until when
-- KEYS[3i]:  the marks of temporary semaphores
-- ARGV[1]:   publish command
-- ARGV[3i-1]: the ids, 16 bytes each
-- ARGV[3i]:  time to live in ms, never shortens what there is; 0 only looks
-- ARGV[3i+1]: channel
-- Returns:   for each: >= -1 held, the time to live found (-1 endless); -2 gone; an error as text
-- Publishes: the free permits to the channel, if some have ended and any are free
local answers = {}
for i = 1, #KEYS / 3 do
  local key, ends, ttl = KEYS[3 * i - 2], KEYS[3 * i - 1], tonumber(ARGV[3 * i])
  local free, wrong = number(key)
  local set = redis.pcall('ZCARD', ends)
  if type(set) == 'table' then wrong = wrong or set end
  if wrong then
    answers[i] = wrong.err
  else
    local now, ids = clock(), split(ARGV[3 * i - 1])
    local _, first, found = look(ends, ids, now)
    -- After a write that needs no memory the next is not refused for want of it.
    redis.call('ZREM', ends, '')
    local over = ended(free, ends, now)
    if remove(ends, over) > 0 then
      local total = redis.call('INCRBY', key, #over)
      if total > 0 then redis.pcall(ARGV[1], ARGV[3 * i + 1], total) end
    end
    if first and ttl > 0 then
      for _, id in ipairs(ids) do set_end(ends, id, math.max(found[id], now + ttl)) end
    end
    if free then keep(key, ends, KEYS[3 * i], now) end
    answers[i] = not first and -2 or first >= ENDLESS and -1 or math.ceil(first - now)
  end
end
return answers
