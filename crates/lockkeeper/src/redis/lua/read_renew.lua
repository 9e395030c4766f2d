-- Purpose:   renews or checks many readers; an error of one is the answer for that one
-- KEYS[i]:   the locks
-- ARGV[3i-2]: owner
-- ARGV[3i-1]: TTL in ms, never shortens the stored TTL; 0 only checks
-- ARGV[3i]:  prefix of the keys of single holds
-- Returns:   for each: >= -1 held, the TTL found; -2 free; -3 held by another owner; an error as text
-- Publishes: nothing
local answers = {}
for i = 1, #ARGV / 3 do
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
      -- Also for a check: the renewal of a Java reader sets the TTL of the lock to 30 s, even below that
      -- of another reader.
      local longest = math.max(own, ttl)
      if left < longest then
        ends_in(key, longest)
        if mode == 'write' then outlast(key, prefix, left) end
      end
      answers[i] = own
    else
      -- Other readers do not conflict with this hold.
      answers[i] = (held or mode == 'read') and -2 or -3
    end
  end
end
return answers
