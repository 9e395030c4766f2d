-- Purpose:   force-releases a read/write lock
-- KEYS[1]:   the lock
-- ARGV[1]:   publish command
-- ARGV[2]:   channel
-- ARGV[3]:   prefix of the notice channels of clients
-- ARGV[4]:   reason, on one line
-- ARGV[5]:   prefix of the keys of single holds
-- ARGV[6..]: the only owners from which it may be released; any if there are none
-- Returns:   the former owners; 'other' if the holders are others
-- Publishes: to the channel 0 for readers, 1 for a writer; a notice to the client of each owner. From
--            the script, so that they are notified even if its answer is lost
local mode, wrong = settled(KEYS[1], ARGV[5])
if wrong then return wrong end
if not mode then return {} end
local fields, owners, living = redis.call('HGETALL', KEYS[1]), {}, {}
for i = 1, #fields, 2 do
  local count = tonumber(fields[i + 1])
  if count then
    local writer = string.match(fields[i], '^(.*):write$')
    owners[#owners + 1] = writer or fields[i]
    -- An expired reader does not hold the lock, so it need not be among the given owners.
    if writer or life(ARGV[5], fields[i], count) ~= -2 then living[#living + 1] = owners[#owners] end
  end
end
if not holders_match(living, ARGV, 6) then return 'other' end
redis.call('UNLINK', KEYS[1])
for i = 1, #fields, 2 do
  local count, writer = tonumber(fields[i + 1]), string.match(fields[i], '^(.*):write$')
  if writer then
    redis.call('UNLINK', write_end(ARGV[5], writer))
  elseif count then
    drop(ARGV[5], fields[i], 1, count)
  end
end
notify(ARGV[1], ARGV[2], mode == 'read' and '0' or '1')
for _, owner in ipairs(owners) do
  local client = string.match(owner, '^[%x%-]+')
  if client then redis.pcall('PUBLISH', ARGV[3] .. client, 'revoked ' .. owner .. ' ' .. ARGV[4]) end
end
return owners
