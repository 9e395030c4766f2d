-- Purpose:   pass an exclusive lock from one hold of a client to another in one step
-- KEYS[1]:   the lock
-- KEYS[2]:   the writers that wait for it
-- KEYS[3]:   for how long readers have waited, and whether it is their turn
-- KEYS[4]:   its token, if one is to be issued
-- ARGV[1]:   owner that gives
-- ARGV[2]:   owner that receives
-- ARGV[3]:   time to live in ms, the receiver's; a repetition never shortens it
-- ARGV[4]:   what the keys of single holds begin with
-- ARGV[5]:   publish command
-- ARGV[6]:   channel
-- ARGV[7]:   time to live of the token in ms, or empty; where there is one
-- Returns:   nil or the token: done, also by an earlier try; >= -1 it was freed, but readers were nested
--            in it or have their turn, for how long (-1 endless); -3 neither holds it
-- Publishes: 1 to the channel when readers are left, or come first
local _, wrong = settled(KEYS[1], ARGV[4])
if wrong then return wrong end
local from, to = ARGV[1] .. ':write', ARGV[2] .. ':write'
if redis.call('HEXISTS', KEYS[1], to) == 1 then
  local token = KEYS[4] and (redis.call('GET', KEYS[4]) or next_token(KEYS[4]))
  local ttl = tonumber(ARGV[3])
  if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
  if write_left(KEYS[1], ARGV[4], ARGV[2], ttl) < ttl then
    set_write_end(KEYS[1], ARGV[4], ARGV[2], ttl)
  end
  return token and put_token(KEYS[4], token, ARGV[7])
end
if redis.call('HEXISTS', KEYS[1], from) == 0 then return -3 end
local token = KEYS[4] and next_token(KEYS[4])
if redis.call('HLEN', KEYS[1]) > 2 then redis.call('DEL', write_end(ARGV[4], ARGV[1])) end
local living, longest = readers(KEYS[1], ARGV[4], true)
if #living > 0 then
  downgrade(KEYS[1], from, longest)
  redis.pcall(ARGV[5], ARGV[6], '1')
  return redis.call('PTTL', KEYS[1])
end
local now = clock()
local turn = readers_turn(KEYS[3], now)
if turn then
  redis.call('DEL', KEYS[1])
  redis.pcall(ARGV[5], ARGV[6], '1')
  return turn - now
end
-- First, because after a write that needs no memory the next is not refused for want of it.
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[1], to, '1')
redis.call('HDEL', KEYS[1], from)
withdraw(KEYS[2], ARGV[2])
redis.pcall('ZREM', KEYS[3], 'batch')
return token and put_token(KEYS[4], token, ARGV[7])
