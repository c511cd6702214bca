-- Remove waiting entries and dead letters.
--
-- KEYS[1] records    HASH  id -> record
-- KEYS[2] waiting    ZSET  id -> due time (ms)
-- KEYS[3] leases     HASH  id -> deliveries
-- KEYS[4] errors     HASH  id -> last reason
-- KEYS[5] dead       ZSET  id -> time it died (ms)
-- KEYS[6] slot       STRING number and outcome of this caller's last call
-- ARGV[1] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[...] ids      to cancel
--
-- Returns flags: 1 = cancelled, it will never run; 2 = removed, but it was claimed before (even if that delivery was
-- not counted), so its work may have been done; 0 = unknown id, or in flight.
-- O(ids * log waiting)
local records, waiting, leases, errors, dead, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local sequence = ARGV[1]
local ids = {unpack(ARGV, 2)}

-- include last_call
if last == sequence then return outcome end
redis.call('HLEN', records)
redis.call('HLEN', leases)
redis.call('HLEN', errors)
redis.call('ZCARD', dead)
-- include first_write
local flags = {}
for i, id in ipairs(ids) do
  flags[i] = 0
  local place = redis.call('ZSCORE', waiting, id) and waiting or redis.call('ZSCORE', dead, id) and dead
  if place then
    local deliveries = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
    -- Given back uncounted, with a reason: the broker may have the message although it did not answer.
    if redis.call('HEXISTS', errors, id) == 1 then deliveries = deliveries + 1 end
    redis.call('HDEL', records, id)
    redis.call('HDEL', leases, id)
    redis.call('HDEL', errors, id)
    redis.call('ZREM', place, id)
    flags[i] = deliveries > 0 and 2 or 1
  end
end
return remember(table.concat(flags))
