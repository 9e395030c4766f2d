-- Purpose:   take a free lock, re-enter a held one, or repeat either
-- KEYS[1]:   the lock
-- ARGV[1]:   owner
-- ARGV[2]:   time to live in ms; never shortens what there is
-- ARGV[3]:   hold count the owner will have; above 1 only a held lock is re-entered
-- Returns:   nil granted; >= -1 busy, the time to live (-1 endless); -3 the hold is gone
-- Publishes: nothing
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  if ARGV[3] ~= '1' then return -3 end
  redis.call('HSET', KEYS[1], ARGV[1], '1')
  local ends = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if type(ends) == 'table' then
    -- Not permitted: a lock without an end must not stay.
    redis.call('HDEL', KEYS[1], ARGV[1])
    return ends
  end
  return nil
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  -- First, and in any case, so that the next write is not refused for want of memory.
  redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[2])))
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  return nil
end
if ARGV[3] ~= '1' then return -3 end
-- Busy, if it is a lock at all. A plain lock has one field; a large hash is somebody's data.
if redis.call('HLEN', KEYS[1]) > 16 then return redis.error_reply('WRONGKIND a hash of other data') end
local owned = false
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if field == 'mode' then return redis.error_reply('WRONGKIND a read/write lock') end
  owned = owned or string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+') ~= nil
end
if not owned then return redis.error_reply('WRONGKIND a hash of other data') end
return left
