-- Store an entry as a dead letter; it replaces a dead letter with the same id.
--
-- KEYS[1] meta       HASH  schema, counters
-- KEYS[2] records    HASH  id -> record
-- KEYS[3] leases     HASH  id -> deliveries
-- KEYS[4] errors     HASH  id -> last reason
-- KEYS[5] dead       ZSET  id -> time it died (ms)
-- KEYS[6] slot       STRING number and outcome of this caller's last call
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] id         of the entry
-- ARGV[3] record     without version and time
-- ARGV[4] deliveries that it had
-- ARGV[5] reason     kept with it
-- ARGV[6] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
--
-- Returns {1 if the queue is new, 1 = stored, 0 = an entry with this id waits or is in flight, nothing was stored}
-- O(log dead)
local meta, records, leases, errors, dead, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local now, id, record, deliveries, reason = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local sequence = ARGV[6]

local known = redis.call('HGET', meta, 'schema')
-- include schema
-- include last_call
if last == sequence then return {0, tonumber(outcome)} end
-- include clock
redis.call('HLEN', leases)
redis.call('HLEN', errors)
local died = redis.call('ZSCORE', dead, id)
-- include first_write
if not died and redis.call('HEXISTS', records, id) == 1 then return {0, remember(0)} end
local text = string.format('%.0f', now)
redis.call('ZADD', dead, text, id)
redis.call('HSET', records, id, 'v1 ' .. text .. ' ' .. record)
redis.call('HSET', leases, id, deliveries)
redis.call('HSET', errors, id, reason)
if not died then redis.call('HINCRBY', meta, 'dead', 1) end
if not known then redis.call('HSET', meta, 'schema', SCHEMA) end
return {known and 0 or 1, remember(1)}
