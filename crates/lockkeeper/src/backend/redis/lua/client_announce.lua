-- Purpose:   announces a client and its holds, while it holds any lock
-- KEYS[1]:   the client's key
-- KEYS[2]:   the announced clients: id -> ms of expiry
-- ARGV[1]:   TTL in ms
-- ARGV[2]:   the client's id
-- ARGV[3]:   host
-- ARGV[4]:   pid
-- ARGV[5]:   program
-- ARGV[6]:   start, in ms since the epoch
-- ARGV[7]:   its holds, one line each
-- ARGV[8]:   whether it has more holds than that
-- ARGV[9]:   interval of its announcements, in ms
-- Returns:   nil
-- Publishes: nothing
local time, ttl = redis.call('TIME'), tonumber(ARGV[1])
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now))
redis.call('ZADD', KEYS[2], string.format('%.0f', now + ttl), ARGV[2])
if redis.call('PTTL', KEYS[2]) < ttl then redis.call('PEXPIRE', KEYS[2], ttl) end
redis.call('HSET', KEYS[1], 'host', ARGV[3], 'pid', ARGV[4], 'program', ARGV[5], 'start', ARGV[6],
  'holds', ARGV[7], 'more', ARGV[8], 'ttl', ARGV[1], 'every', ARGV[9])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return nil
