-- Put back the messages or entries of expired leases, to be claimed before all others, or make dead letters of them.
--
-- KEYS[1] meta       HASH  counters
-- KEYS[2] records    HASH  id -> record
-- KEYS[3] in_flight  ZSET  id -> end of its lease (ms)
-- KEYS[4] leases     HASH  id -> "<deliveries> <token>"
-- KEYS[5] errors     HASH  id -> last reason
-- KEYS[6] ready      LIST  ids, next one at the right end
-- KEYS[7] waiting    ZSET  id -> due time (ms)
-- KEYS[8] dead       ZSET  id -> time it died (ms)
-- KEYS[9] quarantine LIST  unreadable records
-- KEYS[10] wake      LIST  at most one item
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] limit      most leases
-- ARGV[3] max_deliveries  0 = never dead
-- ARGV[4] listed     1 = a RedisQueue with a ready list, 0 = a DelayQueue
--
-- The reason of each becomes "lease expired", followed by its earlier reason.
-- Returns {expired leases, returned, dead}; the rest had no record and went to quarantine. Many callers may run at
-- once: each lease ends once.
-- O(limit * log N)
local meta, records, in_flight, leases, errors = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ready, waiting, dead, quarantine, wake = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local now, limit, max_deliveries, listed = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'

-- include clock
-- include unreadable
local at = string.format('%.0f', now)
redis.call('HLEN', meta)
redis.call('HLEN', errors)
redis.call('HLEN', records)
redis.call('HLEN', leases)
redis.call('LLEN', ready)
redis.call('ZCARD', waiting)
redis.call('ZCARD', dead)
redis.call('LLEN', quarantine)
local idle = redis.call('LLEN', wake) == 0
local ids = redis.call('ZRANGEBYSCORE', in_flight, '-inf', at, 'LIMIT', 0, limit)
local expired, returned, died = 'lease expired', 0, 0
-- As includes/first_write.lua. A user without permission to remove from in_flight gets its error here, before anything
-- is in two places.
redis.call('ZREM', in_flight, '')
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
