-- Purpose:   releases permits with ids, or sets their expiry
-- KEYS[1]:   the semaphore
-- KEYS[2]:   acquired permits with their expiry
-- KEYS[3]:   mark of a temporary semaphore
-- KEYS[4]:   answers to requests that must not run twice, if this is one
-- ARGV[1]:   the ids, 16 bytes each
-- ARGV[2]:   ms until they expire, or empty to release them
-- ARGV[3]:   1 for all or none, and only if none has expired; 0 for all that exist
-- ARGV[4]:   publish command
-- ARGV[5]:   channel
-- ARGV[6]:   id of the request, if it must not run twice
-- ARGV[7..]: settled requests of this client, whose answers may be deleted
-- Returns:   >= 0 released, the number of notified subscribers (-1: could not notify); KEPT; nil they do
--            not exist
-- Publishes: the number of free permits to the channel, if it has grown and is not zero
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
-- Before the sweep, so that permits that have just expired count as released by their owner. After a
-- write that needs no memory, Redis does not reject the next one as out of memory.
local given = remove(KEYS[2], fits and ARGV[2] == '' and ids or { '' })
if fits and ARGV[2] ~= '' then
  for _, id in ipairs(ids) do set_end(KEYS[2], id, now + tonumber(ARGV[2])) end
end
local over = ended(free, KEYS[2], now)
given = given + remove(KEYS[2], over)
-- Only if the semaphore exists: INCRBY would create it.
local notified = 0
if free and given > 0 then
  local total = redis.call('INCRBY', KEYS[1], given)
  if total > 0 then notified = notify(ARGV[4], ARGV[5], total) end
end
if free then keep(KEYS[1], KEYS[2], KEYS[3], now) end
if not fits then return nil end
if ARGV[2] ~= '' then return redis.status_reply('KEPT') end
return notified
