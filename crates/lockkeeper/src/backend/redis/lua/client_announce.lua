-- Purpose:   say who a client is, for as long as it holds anything
-- KEYS[1]:   the client's key
-- ARGV[1]:   time to live in ms
-- ARGV[2]:   host
-- ARGV[3]:   pid
-- ARGV[4]:   program
-- ARGV[5]:   start, in ms since the epoch
-- Returns:   nil
-- Publishes: nothing
redis.call('HSET', KEYS[1], 'host', ARGV[2], 'pid', ARGV[3], 'program', ARGV[4], 'start', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return nil
