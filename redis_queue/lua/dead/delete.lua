-- Delete some dead letters.
--
-- KEYS[1] dead       ZSET  id -> time it died (ms)
-- KEYS[2] records    HASH  id -> record
-- KEYS[3] leases     HASH  id -> deliveries
-- KEYS[4] errors     HASH  id -> last reason
-- KEYS[5] slot       STRING number and outcome of this caller's last call
-- ARGV[1] latest     ms; letters that died later are kept; 0 = delete at any age
-- ARGV[2] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[...] ids      of dead letters; others are skipped
--
-- Returns flags: 1 = deleted, 0 = was not dead, or died later.
-- O(ids * log dead)
local dead, records, leases, errors, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local latest, sequence = tonumber(ARGV[1]), ARGV[2]
local ids = {unpack(ARGV, 3)}

-- include last_call
if last == sequence then return outcome end
redis.call('HLEN', records)
redis.call('HLEN', leases)
redis.call('HLEN', errors)
-- include first_write
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
return remember(table.concat(flags))
