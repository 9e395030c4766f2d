-- Purpose:   take a fair lock away from whoever holds it; its queue stays
-- KEYS[1]:   the lock
-- KEYS[2]:   its queue
-- KEYS[3]:   until when Redisson's waiters keep their places
-- KEYS[4]:   when our waiters were last heard of
-- KEYS[5]:   there while silence is forgiven, and a while longer
-- ARGV[1]:   publish command
-- ARGV[2]:   channel; a waiter's own has its id behind a colon
-- ARGV[3]:   what the notice channels of clients begin with
-- ARGV[4]:   why, on one line
-- ARGV[5..]: from whom only, if not from anybody
-- Returns:   the owners it was taken from; other if others hold it
-- Publishes: 0 to the next waiter if there was one, and to the channel; a notice to the client of each
--            owner
local owners = redis.call('HLEN', KEYS[1]) > 16 and {} or redis.call('HKEYS', KEYS[1])
if redis.call('EXISTS', KEYS[1]) == 0 then return owners end
local wrong = not_a_lock(KEYS[1])
if wrong then return wrong end
if not meant(owners, ARGV, 5) then return 'other' end
local now = now_ms()
local first, dropped = head(KEYS[2], KEYS[3], KEYS[4], now, deadly(KEYS[4], KEYS[5], now))
redis.call('UNLINK', KEYS[1])
if dropped then lower_head(KEYS[2], KEYS[3], KEYS[4], now, 0) end
if first then redis.pcall(ARGV[1], ARGV[2] .. ':' .. first, '0') end
redis.pcall(ARGV[1], ARGV[2], '0')
for _, owner in ipairs(owners) do
  local client = string.match(owner, '^[%x%-]+')
  if client then redis.pcall('PUBLISH', ARGV[3] .. client, 'revoked ' .. owner .. ' ' .. ARGV[4]) end
end
return owners
