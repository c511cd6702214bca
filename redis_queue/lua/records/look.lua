-- Read one message or entry in any state.
--
-- KEYS records, waiting, in_flight, dead, leases, errors
-- ARGV id      TEXT   of the message or entry
-- ARGV budget  COUNT  most bytes of its record; a larger one is replaced by its size
--
-- Returns {state, its time in ms or -1, deliveries, last reason, record or size}, or {} for an unknown id. The state is
-- delayed, in_flight, dead, or otherwise ready.
-- O(1)

local size = redis.call('HSTRLEN', records, id)
local record = size > budget and size or redis.call('HGET', records, id)
local at, state = redis.call('ZSCORE', waiting, id), 'delayed'
if not at then at, state = redis.call('ZSCORE', in_flight, id), 'in_flight' end
if not at then at, state = redis.call('ZSCORE', dead, id), 'dead' end
if not at and not record then return {} end
if not at then at, state = -1, 'ready' end
local deliveries = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
return {state, tonumber(at), deliveries, redis.call('HGET', errors, id) or '', record or ''}
