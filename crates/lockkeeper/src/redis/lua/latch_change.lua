-- Purpose:   creates a latch, counts it down, or deletes it
-- KEYS[1]:   the latch
-- KEYS[2]:   answers to its requests
-- ARGV[1]:   id of the request
-- ARGV[2]:   create, down or delete
-- ARGV[3]:   count of the created latch
-- ARGV[4]:   TTL in ms if created, or empty
-- ARGV[5]:   publish command
-- ARGV[6]:   channel
-- ARGV[7..]: settled requests of this client, whose answers may be deleted
-- Returns:   DONE; NOTHING; a number: the remaining count
-- Publishes: 1 to the channel when it is created, 0 when it opens or is deleted. Redisson publishes 1
--            for a deletion, and its waiters would keep sleeping
local past = recall(KEYS[2], ARGV[1])
if past then return past end
local count, wrong = number(KEYS[1])
if wrong then return wrong end
local verb, answer, word = ARGV[2], 'NOTHING', nil
if verb == 'down' then
  local left = math.max((count or 0) - 1, 0)
  answer = string.format('%.0f', left)
  if count and left == 0 then word = '0' end
elseif verb == 'delete' then
  if count then answer, word = 'DONE', '0' end
elseif not count or count <= 0 then
  -- A latch at zero is open and may be created again.
  answer, word = 'DONE', '1'
end
if verb ~= 'create' then needs_no_memory(KEYS[2]) end
remember(KEYS[2], ARGV[1], answer, { unpack(ARGV, 7) })
if word == '0' then
  redis.call('DEL', KEYS[1])
elseif word == '1' and ARGV[4] == '' then
  redis.call('SET', KEYS[1], ARGV[3])
elseif word == '1' then
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
elseif verb == 'down' and count then
  redis.call('INCRBY', KEYS[1], -1)
end
if word then notify(ARGV[5], ARGV[6], word) end
return answer
