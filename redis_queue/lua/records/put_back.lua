-- Put back the messages or entries of expired leases, to be claimed before all others, or make dead letters of them.
--
-- KEYS meta, records, in_flight, leases, errors, ready, waiting, dead, quarantine, wake
-- ARGV now             TIME   0 = the server's clock
-- ARGV limit           COUNT  most leases
-- ARGV max_deliveries  COUNT  0 = never dead
-- ARGV listed          FLAG   1 = a RedisQueue with a ready list, 0 = a DelayQueue
--
-- The reason of each becomes "lease expired", followed by its earlier reason.
-- Returns {expired leases, returned, dead}; the rest had no record and went to quarantine. Many callers may run at
-- once: each lease ends once.
-- O(limit * log N)

-- include clock, unreadable
local at = string.format('%.0f', now)
-- check meta, errors, records, leases, ready, waiting, dead, quarantine
local idle = redis.call('LLEN', wake) == 0
local ids = redis.call('ZRANGEBYSCORE', in_flight, '-inf', at, 'LIMIT', 0, limit)
local expired, returned, died = 'lease expired', 0, 0
-- A user without permission to remove from in_flight gets its error here, before anything is in two places.
-- first_write in_flight
-- Latest first, so that the oldest one ends up at the very front.
for i = #ids, 1, -1 do
  local id = ids[i]
  local deliveries = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 1
  if redis.call('HEXISTS', records, id) == 0 then
    redis.call('RPUSH', quarantine, unreadable(id))
    redis.call('HDEL', leases, id)
  else
    local before = redis.call('HGET', errors, id)
    if not before then
      redis.call('HSET', errors, id, expired)
    elseif string.sub(before, 1, #expired) ~= expired then
      redis.call('HSET', errors, id, expired .. '; before that: ' .. before)
    end
    if max_deliveries > 0 and deliveries >= max_deliveries then
      redis.call('ZADD', dead, at, id)
      died = died + 1
    else
      if listed then redis.call('RPUSH', ready, id) else redis.call('ZADD', waiting, at, id) end
      returned = returned + 1
    end
    redis.call('HSET', leases, id, deliveries)
  end
  redis.call('ZREM', in_flight, id)
end
if returned > 0 then
  redis.call('HINCRBY', meta, 'redelivered', returned)
  if idle and listed then redis.call('RPUSH', wake, '1') end
end
if died > 0 then redis.call('HINCRBY', meta, 'dead', died) end
if returned + died > 0 then redis.call('HINCRBY', meta, 'put_back', returned + died) end
return {#ids, returned, died}
