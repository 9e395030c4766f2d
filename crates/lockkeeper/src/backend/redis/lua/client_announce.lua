-- Purpose:   say who a client is and what it holds, for as long as it holds anything
-- KEYS[1]:   the client's key
-- ARGV[1]:   time to live in ms
-- ARGV[2]:   host
-- ARGV[3]:   pid
-- ARGV[4]:   program
-- ARGV[5]:   start, in ms since the epoch
-- ARGV[6]:   what it holds, a line each
-- ARGV[7]:   whether it holds more than that
-- Returns:   nil
-- Publishes: nothing
redis.call('HSET', KEYS[1], 'host', ARGV[2], 'pid', ARGV[3], 'program', ARGV[4], 'start', ARGV[5],
  'holds', ARGV[6], 'more', ARGV[7])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return nil
