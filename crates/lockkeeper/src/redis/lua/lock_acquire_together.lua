-- Purpose:   acquires several free locks, or none; or repeats that
-- KEYS[j]:   the locks, from the first to the last
-- ARGV[1]:   TTL in ms; never shortens the stored TTL
-- ARGV[i+1]: owner of each, to acquire
-- ARGV[j+1]: owner of each, to undo
-- Returns:   nil granted; >= -1 one is busy, its TTL (-1 never expires)
-- Publishes: nothing
local lefts = {}
for i, key in ipairs(KEYS) do
  lefts[i] = redis.call('PTTL', key)
  if lefts[i] ~= -2 and redis.call('HEXISTS', key, ARGV[i + 1]) == 0 then
    -- Busy, unless the key is not a lock.
    return not_a_lock(key) or lefts[i]
  end
end
for i, key in ipairs(KEYS) do
  redis.call('HSET', key, ARGV[i + 1], '1')
  local ends = redis.pcall('PEXPIRE', key, math.max(lefts[i], tonumber(ARGV[1])))
  if type(ends) == 'table' then
    -- PEXPIRE was denied: locks without a TTL must not remain, so all are undone.
    for j = 1, i do
      if lefts[j] == -2 then redis.call('HDEL', KEYS[j], ARGV[j + 1]) end
    end
    return ends
  end
end
return nil
