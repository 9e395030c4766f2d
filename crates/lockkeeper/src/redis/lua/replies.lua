-- Purpose:   part of the scripts of requests that must not run twice: the answers to them
-- Returns:   nothing
-- Publishes: nothing
local REMEMBERED = 60000

local function recall(key, id)
  local reply = redis.call('HGET', key, id)
  if not reply then return nil end
  local at, answer = string.match(reply, '^(%d+):(.*)')
  if at + REMEMBERED >= clock() then return answer end
end

-- Must be called before the change: if this write is rejected, nothing has changed. All changes of a
-- number use INCRBY, so a user that may not make the remembered change cannot undo it either. `settled`
-- are requests of the same client that cannot execute again; their answers are deleted.
local function remember(key, id, answer, settled)
  local now, any = clock()
  redis.call('HSET', key, id, string.format('%.0f:%s', now, answer))
  redis.call('PEXPIRE', key, REMEMBERED)
  for _, other in ipairs(settled) do redis.call('HDEL', key, other) end
  if redis.call('HLEN', key) <= 131072 then return end
  -- Sweeps a few old answers from a random position, because any number is a valid cursor. Sweeping all
  -- of them would block the server.
  local page = redis.pcall('HSCAN', key, any, 'COUNT', 8)[2] or {}
  for i = 1, #page, 2 do
    local at = tonumber(string.match(page[i + 1], '^%d+'))
    if not at or at + REMEMBERED < now then redis.call('HDEL', key, page[i]) end
  end
end

-- After a write that needs no memory, Redis does not reject the next one as out of memory.
local function needs_no_memory(key)
  redis.call('PEXPIRE', key, REMEMBERED)
end

