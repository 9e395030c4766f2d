-- Purpose:   reads the recorded force-releases of a lock, the newest first
-- KEYS[1]:   the log of the lock
-- Returns:   for each: time, client, reason, then alternating former owner and its client: host, pid,
--            program and start, all empty if unknown
-- Publishes: nothing
local entries = {}
for _, line in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  local read, entry = pcall(cjson.decode, line)
  if read and type(entry) == 'table' then
    local parts = { entry.at or '0', entry.by or '', entry.reason or '' }
    for i, holder in ipairs(entry.holders or {}) do
      -- Records of earlier versions do not contain the clients.
      local client = (entry.clients or {})[i] or {}
      parts[#parts + 1] = holder
      for _, field in ipairs({ 'host', 'pid', 'program', 'start' }) do
        parts[#parts + 1] = client[field] or ''
      end
    end
    entries[#entries + 1] = parts
  end
end
return entries
