-- Purpose:   part of the scripts that acquire: the busy answer to a waiter
-- Returns:   nothing by itself
-- Publishes: nothing
-- Returns `left` alone; for a waiter also the number of listeners on its channel, if the user may read
-- that. `count` is the form of PUBSUB that counts them: SHARDNUMSUB where wake-ups are sharded.
local function busy(left, channel, count)
  if not channel or channel == '' then return left end
  local listening = redis.pcall('PUBSUB', count or 'NUMSUB', channel)
  if type(listening) ~= 'table' or listening.err then return left end
  return { left, listening[2] }
end

