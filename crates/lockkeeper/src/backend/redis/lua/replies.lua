-- Purpose:   part of the scripts of requests that must not run twice: what was answered to them
-- Returns:   nothing
-- Publishes: nothing
local REMEMBERED = 60000

local function recall(key, id)
  local reply = redis.call('HGET', key, id)
  return reply and string.match(reply, ':(.*)')
end

-- Before what it tells of is done: where this is refused, nothing has happened. All changes of a
-- number are INCRBY, so that whoever may not make the one that is remembered cannot undo it either.
-- `settled` are requests of the same client that cannot come again.
local function remember(key, id, answer, settled)
  local now, any = clock()
  redis.call('HSET', key, id, string.format('%.0f:%s', now, answer))
  redis.call('PEXPIRE', key, REMEMBERED)
  for _, other in ipairs(settled) do redis.call('HDEL', key, other) end
  if redis.call('HLEN', key) <= 131072 then return end
  -- A few of the many, wherever: any number is a cursor. To sweep them all would take its time.
  local page = redis.pcall('HSCAN', key, any, 'COUNT', 8)[2] or {}
  for i = 1, #page, 2 do
    local at = tonumber(string.match(page[i + 1], '^%d+'))
    if not at or at + REMEMBERED < now then redis.call('HDEL', key, page[i]) end
  end
end

-- After a write that needs no memory the next is not refused for want of it.
local function needs_no_memory(key)
  redis.call('PEXPIRE', key, REMEMBERED)
end

