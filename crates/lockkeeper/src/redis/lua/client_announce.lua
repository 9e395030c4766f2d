-- Purpose:   announces a client and its holds, while it holds any lock
-- KEYS[1]:   the client's key
-- ARGV[1]:   TTL in ms
-- ARGV[2]:   host
-- ARGV[3]:   pid
-- ARGV[4]:   program
-- ARGV[5]:   start, in ms since the epoch
-- ARGV[6]:   its holds, one line each
-- ARGV[7]:   whether it has more holds than that
-- ARGV[8]:   interval of its announcements, in ms
-- Returns:   nil
-- Publishes: nothing
redis.call('HSET', KEYS[1], 'host', ARGV[2], 'pid', ARGV[3], 'program', ARGV[4], 'start', ARGV[5],
  'holds', ARGV[6], 'more', ARGV[7], 'ttl', ARGV[1], 'every', ARGV[8])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return nil
