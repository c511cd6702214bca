-- Read one message or entry in any state.
--
-- KEYS[1] records    HASH  id -> record
-- KEYS[2] waiting    ZSET  id -> due time (ms)
-- KEYS[3] in_flight  ZSET  id -> end of its lease (ms)
-- KEYS[4] dead       ZSET  id -> time it died (ms)
-- KEYS[5] leases     HASH  id -> "<deliveries> <token>"
-- KEYS[6] errors     HASH  id -> last reason
-- ARGV[1] id         of the message or entry
-- ARGV[2] budget     most bytes of its record; a larger one is replaced by its size
--
-- Returns {state, its time in ms or -1, deliveries, last reason, record or size}, or {} for an unknown id. The state is
-- delayed, in_flight, dead, or otherwise ready.
-- O(1)
local records, waiting, in_flight, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local leases, errors = KEYS[5], KEYS[6]
local id, budget = ARGV[1], tonumber(ARGV[2])

local size = redis.call('HSTRLEN', records, id)
local record = size > budget and size or redis.call('HGET', records, id)
local at, state = redis.call('ZSCORE', waiting, id), 'delayed'
if not at then at, state = redis.call('ZSCORE', in_flight, id), 'in_flight' end
if not at then at, state = redis.call('ZSCORE', dead, id), 'dead' end
if not at and not record then return {} end
if not at then at, state = -1, 'ready' end
local deliveries = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
return {state, tonumber(at), deliveries, redis.call('HGET', errors, id) or '', record or ''}
