-- Purpose:   take a free lock alone, upgrade one's own shared hold, re-enter, or repeat any
-- KEYS[1]:   the lock
-- KEYS[2]:   the writers that wait for it
-- KEYS[3]:   for how long readers have waited, and whether it is their turn
-- KEYS[4]:   its token, if one is to be issued
-- ARGV[1]:   owner
-- ARGV[2]:   time to live in ms; never shortens what there is
-- ARGV[3]:   hold count the owner will have; above 1 only a held lock is re-entered
-- ARGV[4]:   what the keys of single holds begin with
-- ARGV[5]:   owner of the shared hold that does not stand in the way, or empty
-- ARGV[6]:   1 to keep new readers out for a while if it is busy
-- ARGV[7]:   time to live of the token in ms, or empty
-- ARGV[8]:   channel that a waiter would listen on, or nothing
-- Returns:   nil or the token: granted; >= -1 busy, the time to live (-1 endless), to a waiter with the
--            number of listeners; -3 the hold is gone
-- Publishes: nothing
local mode, wrong, left = settled(KEYS[1], ARGV[4])
if wrong then return wrong end
local field, ttl = ARGV[1] .. ':write', tonumber(ARGV[2])
if mode and redis.call('HEXISTS', KEYS[1], field) == 1 then
  -- A repetition of the first acquire is told the token of the first; a re-entry asks for one only
  -- if the owner has none.
  local token = KEYS[4] and (ARGV[3] == '1' and redis.call('GET', KEYS[4]) or next_token(KEYS[4]))
  -- First, and in any case, so that the next write is not refused for want of memory.
  redis.call('PEXPIRE', KEYS[1], math.max(left, ttl))
  redis.call('HSET', KEYS[1], field, ARGV[3])
  if write_left(KEYS[1], ARGV[4], ARGV[1], ttl) < ttl then
    set_write_end(KEYS[1], ARGV[4], ARGV[1], ttl)
  end
  return token and put_token(KEYS[4], token, ARGV[7])
end
if ARGV[3] ~= '1' then return -3 end
-- Before the first write, because a token's key can be something else.
local token = KEYS[4] and next_token(KEYS[4])
local free, awaited = mode == nil, redis.call('EXISTS', KEYS[2], KEYS[3]) > 0
if free and awaited and ARGV[5] == '' then
  local now = clock()
  local turn = readers_turn(KEYS[3], now)
  if turn then free, left = false, turn - now end
end
if mode == 'read' then
  local living, longest = readers(KEYS[1], ARGV[4], true)
  free = #living == 0 or #living == 1 and living[1] == ARGV[5]
  ttl = free and math.max(ttl, longest)
end
if not free then
  if ARGV[6] == '1' then wait(KEYS[2], KEYS[3], ARGV[1]) end
  -- Readers that wait listen, too, but cannot acquire it before the writers: only these are a crowd.
  local writers = redis.pcall('ZCARD', KEYS[2])
  return busy(left, type(writers) == 'number' and writers >= 16 and ARGV[8])
end
if token then put_token(KEYS[4], token, ARGV[7]) end
redis.call('HSET', KEYS[1], 'mode', 'write', field, '1')
local ends = redis.pcall('PEXPIRE', KEYS[1], ttl)
if type(ends) == 'table' then
  -- Not permitted: a lock without an end must not stay.
  redis.call('HDEL', KEYS[1], field, mode and field or 'mode')
  if mode then redis.call('HSET', KEYS[1], 'mode', mode) end
  return ends
end
if ttl > tonumber(ARGV[2]) then set_write_end(KEYS[1], ARGV[4], ARGV[1], tonumber(ARGV[2])) end
if awaited then
  withdraw(KEYS[2], ARGV[1])
  redis.pcall('ZREM', KEYS[3], 'batch')
end
return token
