-- Purpose:   part of the scripts that wake up waiters
-- Returns:   nothing by itself
-- Publishes: nothing by itself
-- Publishes a message; by BOTH it sends it sharded, then plain; not at all if the command is empty. Returns
-- the number of notified subscribers, -1 if it could not notify. It never fails, because the lock is free
-- already.
local function notify(command, channel, message)
  if command == '' then return 0 end
  local notified = redis.pcall(command == 'BOTH' and 'SPUBLISH' or command, channel, message)
  if command == 'BOTH' then redis.pcall('PUBLISH', channel, message) end
  return type(notified) == 'table' and -1 or notified
end

