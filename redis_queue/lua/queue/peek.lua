-- Read the next messages without claiming them.
--
-- KEYS records, ready, leases
-- ARGV offset  COUNT  how many to skip
-- ARGV limit   COUNT  most messages
-- ARGV budget  COUNT  bytes of records to return; a record that does not fit is replaced by its size
--
-- Returns {1 if it stopped before the limit, id, deliveries so far, record, "" or size, ...}, next message first.
-- Stops after the message that makes 1 MiB, and reads none after it, so that no call blocks Redis for long.
-- O(offset + limit)

local MAX_BYTES = 1048576
local reply, bytes = {0}, 0
local ids = redis.call('LRANGE', ready, -offset - limit, -offset - 1)
for i = #ids, 1, -1 do
  local id, more = ids[i], i > 1
  reply[#reply + 1] = id
  reply[#reply + 1] = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
  -- include budget
end
return reply
