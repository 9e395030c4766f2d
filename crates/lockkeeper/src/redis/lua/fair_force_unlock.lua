-- Purpose:   force-releases a fair lock; its queue remains
-- KEYS[1]:   the lock
-- KEYS[2]:   its queue
-- KEYS[3]:   expiry of queue positions, as Redisson stores it
-- KEYS[4]:   last heartbeats of our waiters
-- KEYS[5]:   exists during a grace period for stale waiters, and until the next one may begin
-- ARGV[1]:   publish command
-- ARGV[2]:   channel; a waiter's own channel has a colon and its id appended
-- ARGV[3]:   prefix of the notice channels of clients
-- ARGV[4]:   reason, on one line
-- ARGV[5..]: the only owners from which it may be released; any if there are none
-- Returns:   the former owners; 'other' if the holders are others
-- Publishes: 0 to the next waiter if the lock was held, and to the channel; a notice to the client of
--            each owner
local owners = redis.call('HLEN', KEYS[1]) > 16 and {} or redis.call('HKEYS', KEYS[1])
if redis.call('EXISTS', KEYS[1]) == 0 then return owners end
local wrong = not_a_lock(KEYS[1])
if wrong then return wrong end
if not holders_match(owners, ARGV, 5) then return 'other' end
local now = now_ms()
local first, dropped = head(KEYS[2], KEYS[3], KEYS[4], now, deadly(KEYS[4], KEYS[5], now))
redis.call('UNLINK', KEYS[1])
if dropped then lower_head(KEYS[2], KEYS[3], KEYS[4], now, 0) end
if first then notify(ARGV[1], ARGV[2] .. ':' .. first, '0') end
notify(ARGV[1], ARGV[2], '0')
for _, owner in ipairs(owners) do
  local client = string.match(owner, '^[%x%-]+')
  if client then redis.pcall('PUBLISH', ARGV[3] .. client, 'revoked ' .. owner .. ' ' .. ARGV[4]) end
end
return owners
