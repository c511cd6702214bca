-- List what is in flight, by the end of the leases.
--
-- KEYS[1] in_flight  ZSET  id -> end of its lease (ms)
-- KEYS[2] leases     HASH  id -> "<deliveries> <token>"
-- ARGV[1] offset     leases to skip
-- ARGV[2] limit      most leases
--
-- Returns {id, end of its lease, deliveries, ...}.
-- O(offset + limit)
local in_flight, leases = KEYS[1], KEYS[2]
local offset, limit = tonumber(ARGV[1]), tonumber(ARGV[2])

local reply = {}
local found = redis.call('ZRANGE', in_flight, offset, offset + limit - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local lease = redis.call('HGET', leases, found[i]) or ''
  reply[#reply + 1] = found[i]
  reply[#reply + 1] = tonumber(found[i + 1])
  reply[#reply + 1] = tonumber(string.match(lease, '^%d+')) or 0
end
return reply
