-- Read one waiting or claimed entry.
--
-- KEYS[1] records    HASH  id -> record
-- KEYS[2] waiting    ZSET  id -> due time (ms)
-- KEYS[3] in_flight  ZSET  id -> end of its lease (ms)
-- KEYS[4] leases     HASH  id -> "<deliveries> <token>"
-- ARGV[1] id         of the entry
--
-- Returns {id, deliveries, due time (in flight: the end of its lease), record}, or {} if it is neither.
-- O(1)
local records, waiting, in_flight, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id = ARGV[1]

local record = redis.call('HGET', records, id)
local score = redis.call('ZSCORE', waiting, id) or redis.call('ZSCORE', in_flight, id)
if not record or not score then return {} end
local deliveries = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
return {id, deliveries, tonumber(score), record}
