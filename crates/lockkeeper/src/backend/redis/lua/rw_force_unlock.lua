-- Purpose:   take a read/write lock away from everybody who holds it
-- KEYS[1]:   the lock
-- ARGV[1]:   publish command
-- ARGV[2]:   channel
-- ARGV[3]:   what the notice channels of clients begin with
-- ARGV[4]:   why, on one line
-- ARGV[5]:   what the keys of single holds begin with
-- ARGV[6..]: from whom only, if not from anybody
-- Returns:   the owners it was taken from; other if others hold it
-- Publishes: to the channel 0 for readers, 1 for a writer; a notice to the client of each owner. Here,
--            so that they are told though the answer to this may be lost
local mode, wrong = settled(KEYS[1], ARGV[5])
if wrong then return wrong end
if not mode then return {} end
local fields, owners, living = redis.call('HGETALL', KEYS[1]), {}, {}
for i = 1, #fields, 2 do
  local count = tonumber(fields[i + 1])
  if count then
    local writer = string.match(fields[i], '^(.*):write$')
    owners[#owners + 1] = writer or fields[i]
    -- A reader that is dead does not hold it, whoever it was.
    if writer or life(ARGV[5], fields[i], count) ~= -2 then living[#living + 1] = owners[#owners] end
  end
end
if not meant(living, ARGV, 6) then return 'other' end
redis.call('UNLINK', KEYS[1])
for i = 1, #fields, 2 do
  local count, writer = tonumber(fields[i + 1]), string.match(fields[i], '^(.*):write$')
  if writer then
    redis.call('UNLINK', write_end(ARGV[5], writer))
  elseif count then
    drop(ARGV[5], fields[i], 1, count)
  end
end
redis.pcall(ARGV[1], ARGV[2], mode == 'read' and '0' or '1')
for _, owner in ipairs(owners) do
  local client = string.match(owner, '^[%x%-]+')
  if client then redis.pcall('PUBLISH', ARGV[3] .. client, 'revoked ' .. owner .. ' ' .. ARGV[4]) end
end
return owners
