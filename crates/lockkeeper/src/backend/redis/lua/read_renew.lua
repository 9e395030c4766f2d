-- Purpose:   renew or check many readers; an error of one is that one's answer
-- KEYS[i]:   the locks
-- ARGV[3i-2]: owner
-- ARGV[3i-1]: time to live in ms, never shortens what there is; 0 only looks
-- ARGV[3i]:  what the keys of single holds begin with
-- Returns:   for each: >= -1 held, the time to live found; -2 gone; -3 taken; an error as text
-- Publishes: nothing
local answers = {}
for i = 1, #KEYS do
  local key, owner, ttl, prefix = KEYS[i], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
  local mode, wrong, left = settled(key, prefix)
  if wrong then
    answers[i] = wrong.err
  elseif not mode then
    answers[i] = -2
  else
    local held = tonumber(redis.call('HGET', key, owner))
    local own = held and life(prefix, owner, held)
    if own and own ~= -2 then
      if ttl > 0 and own < ttl then keep(prefix, owner, held, ttl) end
      -- Also when only looking: the renewal of a Java reader sets the lock to 30 s, whoever shares it.
      local longest = math.max(own, ttl)
      if left < longest then
        ends_in(key, longest)
        if mode == 'write' then outlast(key, prefix, left) end
      end
      answers[i] = own
    else
      -- Other readers take nothing away.
      answers[i] = (held or mode == 'read') and -2 or -3
    end
  end
end
return answers
