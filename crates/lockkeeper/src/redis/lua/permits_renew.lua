-- Purpose:   renews or checks many holds of permits; an error of one is the answer for that one
-- KEYS[3i-2]: the semaphores
-- KEYS[3i-1]: acquired permits with their expiry
-- KEYS[3i]:  marks of temporary semaphores
-- ARGV[1]:   publish command
-- ARGV[3i-1]: the ids, 16 bytes each
-- ARGV[3i]:  TTL in ms, never shortens the stored TTL; 0 only checks
-- ARGV[3i+1]: channel
-- Returns:   for each: >= -1 held, the TTL found (-1 never expires); -2 does not exist; an error as text
-- Publishes: the number of free permits to the channel, if some have expired and it is not zero
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
    -- After a write that needs no memory, Redis does not reject the next one as out of memory.
    redis.call('ZREM', ends, '')
    local over = ended(free, ends, now)
    if remove(ends, over) > 0 then
      local total = redis.call('INCRBY', key, #over)
      if total > 0 then notify(ARGV[1], ARGV[3 * i + 1], total) end
    end
    if first and ttl > 0 then
      for _, id in ipairs(ids) do set_end(ends, id, math.max(found[id], now + ttl)) end
    end
    if free then keep(key, ends, KEYS[3 * i], now) end
    answers[i] = not first and -2 or first >= ENDLESS and -1 or math.ceil(first - now)
  end
end
return answers
