-- Purpose:   say who a client is and what it holds, for as long as it holds anything
-- KEYS[1]:   the client's key
-- KEYS[2]:   the clients that say so: id -> ms until when
-- ARGV[1]:   time to live in ms
-- ARGV[2]:   the client's id
-- ARGV[3]:   host
-- ARGV[4]:   pid
-- ARGV[5]:   program
-- ARGV[6]:   start, in ms since the epoch
-- ARGV[7]:   what it holds, a line each
-- ARGV[8]:   whether it holds more than that
-- ARGV[9]:   how often it says so, in ms
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
