-- Find orphans, which are records without a place, and places without a record; repair them if asked.
--
-- KEYS meta, records, in_flight, leases, errors, ready, waiting, dead, quarantine, wake
-- ARGV now     TIME  0 = the server's clock
-- ARGV listed  FLAG  1 = a RedisQueue with a ready list, 0 = a DelayQueue
-- ARGV repair  FLAG  1 = repair, 0 = only find
-- ARGV ids     LIST  to check
--
-- An orphan goes to the back of the ready list; in a DelayQueue it becomes a dead letter, since its due time is lost. A
-- place without a record goes to quarantine.
-- Returns flags: 0 = correct or unknown, 1 = a record without a place, 2 = a place without a record.
-- O(ids * (ready + log N))

-- include schema, clock, unreadable
local at = string.format('%.0f', now)
-- check leases, errors, quarantine
local idle = listed and redis.call('LLEN', wake) == 0
local flags, returned = {}, 0
if repair then
  -- first_write leases
end
for i, id in ipairs(ids) do
  local has_record = redis.call('HEXISTS', records, id) == 1
  local placed = redis.call('ZSCORE', waiting, id) or redis.call('ZSCORE', in_flight, id)
    or redis.call('ZSCORE', dead, id) or (listed and redis.call('LPOS', ready, id))
  flags[i] = has_record and (placed and 0 or 1) or (placed and 2 or 0)
  if repair and flags[i] == 1 then
    local deliveries = string.match(redis.call('HGET', leases, id) or '', '^%d+')
    -- First take the lease from its holder.
    if deliveries then redis.call('HSET', leases, id, deliveries) end
    if listed then
      redis.call('LPUSH', ready, id)
      returned = returned + 1
    else
      redis.call('HSET', errors, id, 'was in no place; when it was due is lost')
      redis.call('ZADD', dead, at, id)
    end
  elseif repair and flags[i] == 2 then
    redis.call('RPUSH', quarantine, unreadable(id))
    redis.call('HDEL', leases, id)
    redis.call('HDEL', errors, id)
    redis.call('ZREM', waiting, id)
    redis.call('ZREM', in_flight, id)
    redis.call('ZREM', dead, id)
    if listed then redis.call('LREM', ready, 0, id) end
  end
end
if idle and returned > 0 then redis.call('RPUSH', wake, '1') end
return table.concat(flags)
