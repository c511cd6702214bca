-- Look at the next messages without claiming them.
--
-- KEYS[1] records    HASH  id -> record
-- KEYS[2] ready      LIST  ids, next one at the right end
-- KEYS[3] leases     HASH  id -> deliveries so far
-- ARGV[1] limit      most messages
--
-- Returns {id, deliveries so far, record or "", ...}, next message first.
-- O(limit)
local records, ready, leases = KEYS[1], KEYS[2], KEYS[3]
local limit = tonumber(ARGV[1])

local reply = {}
local ids = redis.call('LRANGE', ready, -limit, -1)
for i = #ids, 1, -1 do
  local held = redis.call('HGET', leases, ids[i]) or '0'
  reply[#reply + 1] = ids[i]
  reply[#reply + 1] = tonumber(string.match(held, '^%d+')) or 0
  reply[#reply + 1] = redis.call('HGET', records, ids[i]) or ''
end
return reply
