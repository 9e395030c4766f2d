-- Purpose:   adds a client to the announced ones, and sweeps those that have expired
-- KEYS[1]:   the announced clients: id -> ms of expiry
-- ARGV[1]:   TTL in ms
-- ARGV[2]:   the client's id
-- Returns:   nil
-- Publishes: nothing
local time, ttl = redis.call('TIME'), tonumber(ARGV[1])
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now))
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ttl), ARGV[2])
if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
return nil
