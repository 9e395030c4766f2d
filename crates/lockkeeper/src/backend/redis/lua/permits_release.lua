-- Purpose:   give permits with ids back, or say when they end
-- KEYS[1]:   the semaphore
-- KEYS[2]:   which permits are taken until when
-- KEYS[3]:   the mark of a temporary semaphore
-- KEYS[4]:   what was answered to requests that must not run twice, if this is one
-- ARGV[1]:   the ids, 16 bytes each
-- ARGV[2]:   in how many ms they end, or empty to give them back
-- ARGV[3]:   1 for all or none, and none that has ended; 0 for those that are there
-- ARGV[4]:   publish command
-- ARGV[5]:   channel
-- ARGV[6]:   the request, if it must not run twice
-- ARGV[7..]: requests of this client that are settled and may be forgotten
-- Returns:   >= 0 given back, how many were told (-1: could not tell); KEPT; nil not there
-- Publishes: the free permits to the channel where they are more than before, if any
local past = KEYS[4] and recall(KEYS[4], ARGV[6])
if past then return past == 'DONE' and 0 or nil end
local free, wrong = number(KEYS[1])
if wrong then return wrong end
local now, ids = clock(), split(ARGV[1])
local present, first = look(KEYS[2], ids, now)
local fits = present > 0
if ARGV[3] == '1' then fits = first end
if KEYS[4] then
  needs_no_memory(KEYS[4])
  remember(KEYS[4], ARGV[6], fits and 'DONE' or 'NOTHING', { unpack(ARGV, 7) })
end
-- Before the sweep, so that what has ended just now counts as its owner's. After a write that needs
-- no memory the next is not refused for want of it.
local given = remove(KEYS[2], fits and ARGV[2] == '' and ids or { '' })
if fits and ARGV[2] ~= '' then
  for _, id in ipairs(ids) do set_end(KEYS[2], id, now + tonumber(ARGV[2])) end
end
local over = ended(free, KEYS[2], now)
given = given + remove(KEYS[2], over)
-- Where the semaphore is gone there is nothing to give back to: a bare INCRBY would make it anew.
local told = 0
if free and given > 0 then
  local total = redis.call('INCRBY', KEYS[1], given)
  if total > 0 then told = redis.pcall(ARGV[4], ARGV[5], total) end
  if type(told) == 'table' then told = -1 end
end
if free then keep(KEYS[1], KEYS[2], KEYS[3], now) end
if not fits then return nil end
if ARGV[2] ~= '' then return redis.status_reply('KEPT') end
return told
