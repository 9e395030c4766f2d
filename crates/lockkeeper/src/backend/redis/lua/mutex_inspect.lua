-- Purpose:   who holds a mutex and for how long
-- KEYS[1]:   the mutex
-- Returns:   time to live (-1 endless, -2 free), then owner and 1 if it is held
-- Publishes: nothing
local holder = redis.call('GET', KEYS[1])
if not holder then return { -2 } end
return { redis.call('PTTL', KEYS[1]), holder, 1 }
