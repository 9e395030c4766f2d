-- Purpose:   reads the holder and the TTL of a mutex
-- KEYS[1]:   the mutex
-- Returns:   TTL (-1 never expires, -2 free), then owner and 1 if it is held
-- Publishes: nothing
local holder = redis.call('GET', KEYS[1])
if not holder then return { -2 } end
return { redis.call('PTTL', KEYS[1]), holder, 1 }
