-- Read dead letters, oldest first.
--
-- KEYS dead, records, leases, errors
-- ARGV offset  COUNT  how many to skip
-- ARGV limit   COUNT  most letters
-- ARGV budget  COUNT  bytes of records to return; a record that does not fit is replaced by its size
--
-- Returns {1 if it stopped before the limit, id, time it died, deliveries, reason, record, "" or size, ...}.
-- Stops after the letter that makes 1 MiB, and reads none after it, so that no call blocks Redis for long.
-- O(log dead + limit)

local MAX_BYTES = 1048576
local reply, bytes = {0}, 0
local found = redis.call('ZRANGE', dead, offset, offset + limit - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local id, more = found[i], i + 1 < #found
  reply[#reply + 1] = id
  reply[#reply + 1] = tonumber(found[i + 1])
  reply[#reply + 1] = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
  reply[#reply + 1] = redis.call('HGET', errors, id) or ''
  -- include budget
end
return reply
