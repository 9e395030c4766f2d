-- Purpose:   records a force-release: the last 20 of a lock, for 7 days
-- KEYS[1]:   the log of the lock
-- ARGV[1]:   the client that did it
-- ARGV[2]:   reason
-- ARGV[3..]: alternating former owner and its client: host, pid, program and start, all empty if unknown
-- Returns:   nil
-- Publishes: nothing
local time = redis.call('TIME')
local at = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local entry = { at = at, by = ARGV[1], reason = ARGV[2], holders = {}, clients = {} }
local victims = { unpack(ARGV, 3) }
for i = 1, #victims, 5 do
  local n = #entry.holders + 1
  entry.holders[n] = victims[i]
  entry.clients[n] = {
    host = victims[i + 1], pid = victims[i + 2], program = victims[i + 3], start = victims[i + 4]
  }
end
redis.call('LPUSH', KEYS[1], cjson.encode(entry))
redis.call('LTRIM', KEYS[1], 0, 19)
redis.call('PEXPIRE', KEYS[1], 604800000)
return nil
