-- Read entries: those that wait, those in flight, and dead letters.
--
-- KEYS records, waiting, in_flight, dead, leases
-- ARGV ids  LIST  of the entries
--
-- Returns {number of ids that were looked at, id, deliveries, due time (in flight: the end of its lease; a dead letter:
-- when it died), record, 1 = a dead letter, ...}; other ids are left out.
-- Stops after the entry that makes 1 MiB: call again for the other ids.
-- O(ids)

local MAX_BYTES = 1048576
local reply, bytes = {0}, 0
for i, id in ipairs(ids) do
  local record = redis.call('HGET', records, id)
  local due = redis.call('ZSCORE', waiting, id) or redis.call('ZSCORE', in_flight, id)
  local died = not due and redis.call('ZSCORE', dead, id)
  if record and (due or died) then
    reply[#reply + 1] = id
    reply[#reply + 1] = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
    reply[#reply + 1] = tonumber(due or died)
    reply[#reply + 1] = record
    reply[#reply + 1] = died and 1 or 0
  end
  reply[1], bytes = i, bytes + #(record or '')
  if bytes >= MAX_BYTES then break end
end
return reply
