-- Purpose:   renews or checks many locks; an error of one is the answer for that one
-- KEYS[i]:   the locks
-- ARGV[2i-1]: owner
-- ARGV[2i]:  TTL in ms, never shortens the stored TTL; 0 only checks
-- Returns:   for each: >= -1 held, the TTL found; -2 free; -3 held by another owner; an error as text
-- Publishes: nothing
local answers = {}
for i = 1, #KEYS do
  local key, owner, ttl = KEYS[i], ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  local fields = redis.pcall('HLEN', key)
  if type(fields) == 'table' then
    answers[i] = fields.err
  elseif fields == 0 then
    answers[i] = -2
  elseif fields > 1 or redis.call('HEXISTS', key, owner) == 0 then
    answers[i] = -3
  else
    local left = redis.call('PTTL', key)
    -- A check must not change a key without a TTL: PEXPIRE 0 would delete it.
    if ttl > 0 and left < ttl then redis.call('PEXPIRE', key, ttl) end
    answers[i] = left
  end
end
return answers
