-- Purpose:   reads the holders of a read/write lock, their hold counts and the TTL
-- KEYS[1]:   the lock
-- ARGV[1]:   prefix of the keys of single holds
-- Returns:   TTL (-1 never expires, -2 free), then alternating owner, hold count and whether it is
--            shared; the writer first; only holders whose leases have not expired
-- Publishes: nothing
local mode, wrong = mode_of(KEYS[1])
if wrong then return wrong end
if not mode then return { -2 } end
local left = redis.call('PTTL', KEYS[1])
local writers, shared = { left }, {}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local owner, count = fields[i], tonumber(fields[i + 1])
  local writer = string.match(owner, '^(.*):write$')
  if writer and write_left(KEYS[1], ARGV[1], writer, 0) < 0 then
    -- The writer's lease has expired, and only its readers hold the lock.
    local living, longest = readers(KEYS[1], ARGV[1])
    if #living == 0 then return { -2 } end
    writers[1] = longest
  elseif writer then
    writers[#writers + 1], writers[#writers + 2], writers[#writers + 3] = writer, count, 0
  elseif count and life(ARGV[1], owner, count) ~= -2 then
    shared[#shared + 1], shared[#shared + 2], shared[#shared + 3] = owner, count, 1
  end
end
for _, part in ipairs(shared) do writers[#writers + 1] = part end
return writers
