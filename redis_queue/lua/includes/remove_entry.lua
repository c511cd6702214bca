-- Remove a waiting entry or a dead letter.
--
-- Needs records, waiting, leases, errors, dead. Defines place_of: takes an id; returns where it is, waiting or dead, and
-- nothing for another one, remove: takes an id and this place; returns 1, or 2 if it was claimed before, even if that
-- delivery was not counted.
local function place_of(id)
  return redis.call('ZSCORE', waiting, id) and waiting or redis.call('ZSCORE', dead, id) and dead
end
local function remove(id, place)
  local deliveries = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
  -- Given back uncounted, with a reason: the broker may have the message although it did not answer.
  if redis.call('HEXISTS', errors, id) == 1 then deliveries = deliveries + 1 end
  redis.call('HDEL', records, id)
  redis.call('HDEL', leases, id)
  redis.call('HDEL', errors, id)
  redis.call('ZREM', place, id)
  return deliveries > 0 and 2 or 1
end
