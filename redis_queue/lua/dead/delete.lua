-- Delete single dead letters.
--
-- KEYS[1] dead       ZSET  id -> time it died (ms)
-- KEYS[2] records    HASH  id -> record
-- KEYS[3] leases     HASH  id -> deliveries
-- KEYS[4] errors     HASH  id -> last reason
-- ARGV[1] latest     ms; what died later stays, 0 = whenever it died
-- ARGV[...] ids      of dead letters; others are passed over
--
-- Returns flags: 1 = deleted, 0 = was not dead (also when an earlier call deleted it), or died later.
-- O(ids * log dead)
local dead, records, leases, errors = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local latest = tonumber(ARGV[1])
local ids = {unpack(ARGV, 2)}

redis.call('HLEN', records)
redis.call('HLEN', leases)
redis.call('HLEN', errors)
local flags = {}
for i, id in ipairs(ids) do
  flags[i] = 0
  local died = redis.call('ZSCORE', dead, id)
  if died and (latest == 0 or tonumber(died) <= latest) then
    redis.call('HDEL', records, id)
    redis.call('HDEL', leases, id)
    redis.call('HDEL', errors, id)
    redis.call('ZREM', dead, id)
    flags[i] = 1
  end
end
return table.concat(flags)
