-- Purpose:   part of the scripts that grant: the next fencing token of a lock
-- Returns:   nothing by itself
-- Publishes: nothing
-- Grows even if the key was lost or set back: never below the server's clock in µs. A stored value that
-- cannot be counted exactly is ignored.
-- A repeated request gets a new token, too. Its caller never saw the first one, and a store that lost
-- data may know the hold of an earlier request, whose token is older than those issued since.
local function next_token(key)
  local last = tonumber(redis.call('GET', key) or 0) or 0
  if not (last >= 0 and last < 9007199254740991) then last = 0 end
  local time = redis.call('TIME')
  return string.format('%.0f', math.max(time[1] * 1000000 + time[2], last + 1))
end

local function put_token(key, token, ttl)
  if ttl == '' then redis.call('SET', key, token) else redis.call('SET', key, token, 'PX', ttl) end
  return token
end

local fenced = true

