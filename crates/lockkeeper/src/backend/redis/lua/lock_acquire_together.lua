-- Purpose:   take several free locks at once, or none; or repeat that
-- KEYS[j]:   the locks, from the first to the last
-- ARGV[1]:   time to live in ms; never shortens what there is
-- ARGV[i+1]: owner of each while they are taken
-- ARGV[j+1]: owner of each while they are undone
-- Returns:   nil granted; >= -1 one is busy, its time to live (-1 endless)
-- Publishes: nothing
local lefts = {}
for i, key in ipairs(KEYS) do
  lefts[i] = redis.call('PTTL', key)
  if lefts[i] ~= -2 and redis.call('HEXISTS', key, ARGV[i + 1]) == 0 then
    -- Busy, if it is a lock at all.
    return not_a_lock(key) or lefts[i]
  end
end
for i, key in ipairs(KEYS) do
  redis.call('HSET', key, ARGV[i + 1], '1')
  local ends = redis.pcall('PEXPIRE', key, math.max(lefts[i], tonumber(ARGV[1])))
  if type(ends) == 'table' then
    -- Not permitted: locks without an end must not stay, and all or none means none.
    for j = 1, i do
      if lefts[j] == -2 then redis.call('HDEL', KEYS[j], ARGV[j + 1]) end
    end
    return ends
  end
end
return nil
