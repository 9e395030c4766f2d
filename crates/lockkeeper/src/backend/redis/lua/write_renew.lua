-- Purpose:   renew or check many writers; an error of one is that one's answer
-- KEYS[i]:   the locks
-- ARGV[2i-1]: owner
-- ARGV[2i]:  time to live in ms, never shortens what there is; 0 only looks
-- Returns:   for each: >= -1 held, the time to live found; -2 gone; -3 taken; an error as text
-- Publishes: nothing
local answers = {}
for i = 1, #KEYS do
  local key, field, ttl = KEYS[i], ARGV[2 * i - 1] .. ':write', tonumber(ARGV[2 * i])
  local mode, wrong = mode_of(key)
  if wrong then
    answers[i] = wrong.err
  elseif not mode then
    answers[i] = -2
  elseif redis.call('HEXISTS', key, field) == 0 then
    answers[i] = -3
  else
    local left = redis.call('PTTL', key)
    -- A look must not touch a key without an end: PEXPIRE 0 would delete it.
    if ttl > 0 and left < ttl then redis.call('PEXPIRE', key, ttl) end
    answers[i] = left
  end
end
return answers
