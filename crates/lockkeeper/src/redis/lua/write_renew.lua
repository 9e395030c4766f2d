-- Purpose:   renews or checks many writers; an error of one is the answer for that one
-- KEYS[i]:   the locks
-- ARGV[3i-2]: owner
-- ARGV[3i-1]: TTL in ms, never shortens the stored TTL; 0 only checks
-- ARGV[3i]:  prefix of the keys of single holds
-- Returns:   for each: >= -1 held, the TTL found; -2 free; -3 held by another owner; an error as text
-- Publishes: nothing
local answers = {}
for i = 1, #KEYS do
  local key, owner, ttl, prefix = KEYS[i], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
  -- Nothing is tidied up here: only the lock is declared, and in a slot that is being moved the keys of
  -- readers may be elsewhere.
  local mode, wrong, left = mode_of(key)
  local own = mode and write_left(key, prefix, owner, nil)
  if wrong then
    answers[i] = wrong.err
  elseif not mode then
    answers[i] = -2
  elseif redis.call('HEXISTS', key, owner .. ':write') == 0 or own and own < 0 then
    -- The lock outlasts the expired lease of its writer for the readers nested in it, if any are left.
    local writer = writer_of(key)
    local over = writer and write_left(key, prefix, writer, 0) < 0
    answers[i] = over and #readers(key, prefix) == 0 and -2 or -3
  else
    -- A check must not change a key without a TTL: PEXPIRE 0 would delete it.
    if ttl > 0 and left < ttl then redis.call('PEXPIRE', key, ttl) end
    if own and own < ttl then set_write_end(key, prefix, owner, ttl) end
    answers[i] = own or left
  end
end
return answers
