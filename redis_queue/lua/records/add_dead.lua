-- Store an entry as a dead letter; it replaces a dead letter with the same id.
--
-- KEYS meta, records, leases, errors, dead, slot
-- ARGV now         TIME  0 = the server's clock
-- ARGV id          TEXT  of the entry
-- ARGV record      TEXT  without version and time
-- ARGV deliveries  TEXT  that it had
-- ARGV reason      TEXT  kept with it
-- ARGV sequence    TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
--
-- Returns {1 if the queue is new, 1 = stored, 0 = an entry with this id waits or is in flight, nothing was stored}
-- O(log dead)

-- include clock, schema, last_call
if last == sequence then return {0, tonumber(outcome)} end
-- check leases, errors
local died = redis.call('ZSCORE', dead, id)
-- first_write leases
if not died and redis.call('HEXISTS', records, id) == 1 then return {0, remember(0)} end
local text = string.format('%.0f', now)
redis.call('ZADD', dead, text, id)
redis.call('HSET', records, id, 'v1 ' .. text .. ' ' .. record)
redis.call('HSET', leases, id, deliveries)
redis.call('HSET', errors, id, reason)
if not died then redis.call('HINCRBY', meta, 'dead', 1) end
if not known then redis.call('HSET', meta, 'schema', SCHEMA) end
return {known and 0 or 1, remember(1)}
