-- Purpose:   take holds of a reader off; without any left of anybody the lock is free
-- KEYS[1]:   the lock
-- ARGV[1]:   owner
-- ARGV[2]:   hold count that stays; no more than this stored means no change
-- ARGV[3]:   publish command
-- ARGV[4]:   channel
-- ARGV[5]:   what the keys of single holds begin with
-- ARGV[6]:   time to live in ms where holds stay, or empty
-- ARGV[7]:   1 to set that though no hold is taken off
-- Returns:   >= 0 freed, how many were told (-1: could not tell); KEPT; nil not held by anybody;
--            an owner: held by that one
-- Publishes: 0 to the channel when nobody holds it any more
local mode, wrong, left = settled(KEYS[1], ARGV[5])
if wrong then return wrong end
local held = mode and tonumber(redis.call('HGET', KEYS[1], ARGV[1]))
if not held then return holder(KEYS[1]) end
local own = life(ARGV[5], ARGV[1], held)
-- The lock ends with its last reader. If that is another one, its end stays; a writer's in any case.
local last = mode == 'read' and own >= left - 2
local stay = tonumber(ARGV[2])
if stay > 0 then
  -- A dead reader keeps nothing: a writer may come at any moment.
  if own == -2 then return nil end
  local ttl = tonumber(ARGV[6])
  -- What needs no memory first: the next write is then not refused for want of it.
  if held > stay then
    drop(ARGV[5], ARGV[1], stay + 1, held)
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  elseif ARGV[7] ~= '1' then
    ttl = nil
  end
  if ttl then
    keep(ARGV[5], ARGV[1], math.min(stay, held), ttl)
    if last then
      local _, longest = readers(KEYS[1], ARGV[5])
      ends_in(KEYS[1], longest)
    elseif left < ttl then
      ends_in(KEYS[1], ttl)
      if mode == 'write' then outlast(KEYS[1], ARGV[5], left) end
    end
  end
  return redis.status_reply('KEPT')
end
local writer = mode == 'write' and writer_of(KEYS[1])
local written = writer and write_left(KEYS[1], ARGV[5], writer, nil)
redis.call('HDEL', KEYS[1], ARGV[1])
drop(ARGV[5], ARGV[1], 1, held)
if written then
  -- It may have made the lock outlast the writer, which no longer has to be so.
  local _, longest = readers(KEYS[1], ARGV[5])
  ends_in(KEYS[1], math.max(written, longest))
  if longest <= written then redis.call('DEL', write_end(ARGV[5], writer)) end
end
-- Beside `mode` there is another one, perhaps the writer, and the lock did not live for this one.
if not last and redis.call('HLEN', KEYS[1]) > 1 then return 0 end
local living, longest = readers(KEYS[1], ARGV[5])
if #living > 0 then
  ends_in(KEYS[1], longest)
  return 0
end
redis.call('DEL', KEYS[1])
local told = redis.pcall(ARGV[3], ARGV[4], '0')
if type(told) == 'table' then return -1 end
return told
