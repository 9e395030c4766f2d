-- Purpose:   hands a write lock off from one hold of a client to another in one step
-- KEYS[1]:   the lock
-- KEYS[2]:   its waiting writers
-- KEYS[3]:   how long readers have waited, and whether it is their turn
-- KEYS[4]:   its fencing token, if one is to be issued
-- ARGV[1]:   owner that hands it off
-- ARGV[2]:   owner that receives it
-- ARGV[3]:   TTL in ms of the receiver; a repetition never shortens it
-- ARGV[4]:   prefix of the keys of single holds
-- ARGV[5]:   publish command
-- ARGV[6]:   channel
-- ARGV[7]:   TTL of the token in ms, or empty; only with a token
-- Returns:   nil or the token: done, now or by an earlier attempt; >= -1 freed, but readers are nested
--            in it or have their turn, the ms to wait (-1 never expires); -3 neither holds it
-- Publishes: 1 to the channel when readers remain, or go first
local token_key = fenced and KEYS[4] or nil
local _, wrong = settled(KEYS[1], ARGV[4])
if wrong then return wrong end
local from, to = ARGV[1] .. ':write', ARGV[2] .. ':write'
if redis.call('HEXISTS', KEYS[1], to) == 1 then
  local token = token_key and next_token(token_key)
  local ttl = tonumber(ARGV[3])
  if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
  if write_left(KEYS[1], ARGV[4], ARGV[2], ttl) < ttl then
    set_write_end(KEYS[1], ARGV[4], ARGV[2], ttl)
  end
  return token and put_token(token_key, token, ARGV[7])
end
if redis.call('HEXISTS', KEYS[1], from) == 0 then return -3 end
local token = token_key and next_token(token_key)
if redis.call('HLEN', KEYS[1]) > 2 then redis.call('DEL', write_end(ARGV[4], ARGV[1])) end
local living, longest = readers(KEYS[1], ARGV[4], true)
if #living > 0 then
  downgrade(KEYS[1], from, longest)
  notify(ARGV[5], ARGV[6], '1')
  return redis.call('PTTL', KEYS[1])
end
local now = clock()
local turn = readers_turn(KEYS[3], now)
if turn then
  redis.call('DEL', KEYS[1])
  notify(ARGV[5], ARGV[6], '1')
  return turn - now
end
-- First: after a write that needs no memory, Redis does not reject the next one as out of memory.
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[1], to, '1')
redis.call('HDEL', KEYS[1], from)
withdraw(KEYS[2], ARGV[2])
redis.pcall('ZREM', KEYS[3], 'batch')
return token and put_token(token_key, token, ARGV[7])
