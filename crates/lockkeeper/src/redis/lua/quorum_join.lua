-- Purpose:   reads the marker of a member of a quorum, and writes a new one if there is none or the server
--            was restarted or was a replica since
-- KEYS[1]:   the marker
-- ARGV[1]:   nonce of a new marker
-- ARGV[2]:   longest lease of the quorum in ms
-- ARGV[3]:   members of the quorum
-- ARGV[4]:   1 to write a marker where one is needed, otherwise 0
-- Returns:   nonce, empty if a marker is needed and was not written, run id of the server, ms for which it grants nothing, longest lease and members of the
--            quorum that it belongs to. Of another quorum than given, nothing is changed
-- Publishes: nothing
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if not run then return redis.error_reply('NORUNID the server does not report its run id') end
-- Another one after each time as a replica. A server that never was one has no second history; its first one
-- changes with replicas and backups, and says nothing.
local replication = redis.call('INFO', 'replication')
local is_promoted = string.find(replication, 'master_replid2:0*[^0%s]') ~= nil
local history = is_promoted and string.match(replication, 'master_replid:(%w+)') or ''
local time = redis.call('TIME')
local now, lease = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
local marker = redis.call('HMGET', KEYS[1], 'run', 'nonce', 'since', 'lease', 'nodes', 'history')
local is_other = marker[5] and (marker[4] ~= ARGV[2] or marker[5] ~= ARGV[3])
if is_other then return { marker[2] or '', run, lease, marker[4] or '', marker[5] } end
local since = tonumber(marker[3])
if marker[1] ~= run or history ~= '' and marker[6] ~= history or not marker[2] or not since then
  if ARGV[4] == '0' then return { '', run, lease, ARGV[2], ARGV[3] } end
  redis.call('HSET', KEYS[1], 'run', run, 'nonce', ARGV[1], 'since', string.format('%.0f', now),
    'lease', ARGV[2], 'nodes', ARGV[3], 'history', history)
  return { ARGV[1], run, lease, ARGV[2], ARGV[3] }
end
if since > now then
  -- The clock was set back: it begins anew, once.
  since = now
  redis.call('HSET', KEYS[1], 'since', string.format('%.0f', now))
end
return { marker[2], run, math.max(0, since + lease - now), ARGV[2], ARGV[3] }
