-- Read the version of each id's record: its first line, with its time and lengths.
--
-- KEYS records
-- ARGV ids  LIST  of messages or entries
--
-- Returns {first line of the record, at most 100 bytes, or "" for an id without one, ...} for the first ids.
-- Stops after the record that makes 1 MiB: call again for the other ids.
-- O(ids)

local MAX_BYTES = 1048576
local reply, bytes = {}, 0
for i = 1, #ids do
  local record = redis.call('HGET', records, ids[i]) or ''
  reply[i] = string.match(string.sub(record, 1, 100), '^[^\n]*')
  bytes = bytes + #record
  if bytes >= MAX_BYTES then break end
end
return reply
