-- Read one waiting or claimed entry.
--
-- KEYS records, waiting, in_flight, leases
-- ARGV id  TEXT  of the entry
--
-- Returns {id, deliveries, due time (in flight: the end of its lease), record}, or {} if it is neither.
-- O(1)

local record = redis.call('HGET', records, id)
local score = redis.call('ZSCORE', waiting, id) or redis.call('ZSCORE', in_flight, id)
if not record or not score then return {} end
local deliveries = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
return {id, deliveries, tonumber(score), record}
