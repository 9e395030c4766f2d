-- Purpose:   part of the scripts that acquire: what a waiter is told that finds it busy
-- Returns:   nothing by itself
-- Publishes: nothing
-- `left` alone; for a waiter also how many listen on the channel it would listen on, if that may be asked.
local function busy(left, channel)
  if not channel or channel == '' then return left end
  local listening = redis.pcall('PUBSUB', 'NUMSUB', channel)
  if type(listening) ~= 'table' or listening.err then return left end
  return { left, listening[2] }
end

