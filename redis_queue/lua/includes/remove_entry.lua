-- Remove a waiting entry or a dead letter.
--
-- Needs records, waiting, leases, errors, dead. Defines remove: takes an id and a mark ("" = any record) and whether only
-- a dead letter is removed; returns a flag: 1 = removed; 2 = removed, but it was claimed before, even if that delivery
-- was not counted; 0 = it does not wait; 3 = its record lacks the mark; and the size of a record that was read.
local function remove(id, mark, only_dead)
  local place = not only_dead and redis.call('ZSCORE', waiting, id) and waiting
    or redis.call('ZSCORE', dead, id) and dead
  if not place then return 0, 0 end
  local record = mark ~= '' and (redis.call('HGET', records, id) or '')
  if record and not string.find(record, mark, 1, true) then return 3, #record end
  local deliveries = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
  -- Given back uncounted, with a reason: the broker may have the message although it did not answer.
  if redis.call('HEXISTS', errors, id) == 1 then deliveries = deliveries + 1 end
  redis.call('HDEL', records, id)
  redis.call('HDEL', leases, id)
  redis.call('HDEL', errors, id)
  redis.call('ZREM', place, id)
  return deliveries > 0 and 2 or 1, #(record or '')
end
