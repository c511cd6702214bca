-- List what is in flight, by the end of the leases.
--
-- KEYS in_flight, leases
-- ARGV offset  COUNT  leases to skip
-- ARGV limit   COUNT  most leases
--
-- Returns {id, end of its lease, deliveries, ...}.
-- O(offset + limit)

local reply = {}
local found = redis.call('ZRANGE', in_flight, offset, offset + limit - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local lease = redis.call('HGET', leases, found[i]) or ''
  reply[#reply + 1] = found[i]
  reply[#reply + 1] = tonumber(found[i + 1])
  reply[#reply + 1] = tonumber(string.match(lease, '^%d+')) or 0
end
return reply
