-- Purpose:   acquires a write lock, upgrades the owner's read hold, re-enters, or repeats any
-- KEYS[1]:   the lock
-- KEYS[2]:   its waiting writers
-- KEYS[3]:   how long readers have waited, and whether it is their turn
-- KEYS[4]:   its fencing token, if one is to be issued
-- ARGV[1]:   owner
-- ARGV[2]:   TTL in ms; never shortens the stored TTL
-- ARGV[3]:   hold count that the owner will have; above 1 only a held lock is re-entered
-- ARGV[4]:   prefix of the keys of single holds
-- ARGV[5]:   owner of the read hold that does not conflict, or empty
-- ARGV[6]:   1 to keep new readers out for a while if busy
-- ARGV[7]:   TTL of the token in ms, or empty
-- ARGV[8]:   channel that a waiter would listen on, or nothing
-- ARGV[9]:   form of PUBSUB that counts listeners; NUMSUB if there is none
-- Returns:   nil or the token: granted; >= -1 busy, the TTL (-1 never expires), for a waiter with the
--            number of listeners; -3 the hold does not exist
-- Publishes: nothing
local token_key = fenced and KEYS[4] or nil
local mode, wrong, left = settled(KEYS[1], ARGV[4])
if wrong then return wrong end
local field, ttl = ARGV[1] .. ':write', tonumber(ARGV[2])
if mode and redis.call('HEXISTS', KEYS[1], field) == 1 then
  local token = token_key and next_token(token_key)
  -- First and always: after a write that needs no memory, Redis does not reject the next one as out of
  -- memory.
  redis.call('PEXPIRE', KEYS[1], math.max(left, ttl))
  redis.call('HSET', KEYS[1], field, ARGV[3])
  if write_left(KEYS[1], ARGV[4], ARGV[1], ttl) < ttl then
    set_write_end(KEYS[1], ARGV[4], ARGV[1], ttl)
  end
  return token and put_token(token_key, token, ARGV[7])
end
if ARGV[3] ~= '1' then return -3 end
-- Before the first write, because the key of the token may have another type.
local token = token_key and next_token(token_key)
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
  -- Waiting readers listen, too, but cannot acquire the lock before the writers: only writers count as a
  -- crowd.
  local writers = redis.pcall('ZCARD', KEYS[2])
  return busy(left, type(writers) == 'number' and writers >= 16 and ARGV[8], ARGV[9])
end
if token then put_token(token_key, token, ARGV[7]) end
redis.call('HSET', KEYS[1], 'mode', 'write', field, '1')
local ends = redis.pcall('PEXPIRE', KEYS[1], ttl)
if type(ends) == 'table' then
  -- PEXPIRE was denied: a lock without a TTL must not remain.
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
