-- Purpose:   part of the scripts that acquire from a member of a quorum: it grants only with the marker
--            that its client has seen. Takes its own key and argument away from what follows
-- KEYS[#KEYS]: the marker
-- ARGV[#ARGV]: its nonce
-- Returns:   an error if the marker is another one
-- Publishes: nothing
local marker, nonce = KEYS[#KEYS], ARGV[#ARGV]
KEYS[#KEYS], ARGV[#ARGV] = nil, nil
if redis.call('HGET', marker, 'nonce') ~= nonce then
  return redis.error_reply('REJOIN the member of the quorum may have lost its data')
end

