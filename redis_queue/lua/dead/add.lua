-- Store an entry that is dead from the beginning; one that died before under its id is replaced.
--
-- KEYS[1] meta       HASH  schema, counters
-- KEYS[2] records    HASH  id -> record
-- KEYS[3] leases     HASH  id -> deliveries
-- KEYS[4] errors     HASH  id -> last reason
-- KEYS[5] dead       ZSET  id -> time it died (ms)
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] id         of the entry
-- ARGV[3] record     without version and time
-- ARGV[4] deliveries that it had
-- ARGV[5] reason     kept with it
--
-- Returns {1 if the queue is new, 1 = stored, 0 = an entry with this id waits or is in flight: nothing was stored}
-- O(log dead)
local meta, records, leases, errors, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now, id, record, deliveries, reason = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local SCHEMA = 1

local known = tonumber(redis.call('HGET', meta, 'schema'))
if known and known > SCHEMA then return redis.error_reply('NEWER_SCHEMA') end
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
redis.call('HLEN', leases)
redis.call('HLEN', errors)
local died = redis.call('ZSCORE', dead, id)
if not died and redis.call('HEXISTS', records, id) == 1 then return {0, 0} end
local text = string.format('%.0f', now)
redis.call('ZADD', dead, text, id)
redis.call('HSET', records, id, 'v1 ' .. text .. ' ' .. record)
redis.call('HSET', leases, id, deliveries)
redis.call('HSET', errors, id, reason)
if not died then redis.call('HINCRBY', meta, 'dead', 1) end
if not known then redis.call('HSET', meta, 'schema', SCHEMA) end
return {known and 0 or 1, 1}
