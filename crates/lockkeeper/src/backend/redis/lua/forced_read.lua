-- Purpose:   who forced a lock open, the newest first
-- KEYS[1]:   the log of the lock
-- Returns:   for each: when, by whom, why, and then whom it was taken from
-- Publishes: nothing
local entries = {}
for _, line in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  local read, entry = pcall(cjson.decode, line)
  if read and type(entry) == 'table' then
    local told = { entry.at or '0', entry.by or '', entry.reason or '' }
    for _, holder in ipairs(entry.holders or {}) do told[#told + 1] = holder end
    entries[#entries + 1] = told
  end
end
return entries
