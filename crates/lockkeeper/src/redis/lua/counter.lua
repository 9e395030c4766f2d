-- Purpose:   part of the scripts of counters: the value of a counter, and the time
-- Returns:   nothing
-- Publishes: nothing
local COUNT_MAX = 9007199254740991

-- Returns the value of a counter, nil if there is none. The second value is an error: for text that
-- INCRBY would reject, and for a number that a script cannot count exactly, which is not ours.
local function number(key)
  local text = redis.pcall('GET', key)
  if type(text) == 'table' then return nil, text end
  if not text then return nil end
  local value = (text == '0' or string.find(text, '^%-?[1-9]%d*$')) and tonumber(text)
  if value and math.abs(value) <= COUNT_MAX then return value end
  return nil, redis.error_reply('WRONGKIND a string that is no count')
end

local function unset()
  return redis.error_reply('UNSET the semaphore has no permits set: call try_set_permits first')
end

local function too_many()
  return redis.error_reply('TOOMANY more than can be counted: 2^53 - 1')
end

-- Returns the time in ms, and a number that differs from call to call.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000), time[2]
end

