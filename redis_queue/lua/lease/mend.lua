-- Find orphans, which are records without a place, and places without a record; repair them if asked.
--
-- KEYS[1] meta       HASH  schema
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
-- ARGV[2] listed     1 = a RedisQueue with a ready list, 0 = a DelayQueue
-- ARGV[3] acting     1 = repair, 0 = only find
-- ARGV[...] ids      to check
--
-- An orphan goes to the back of the ready list; in a DelayQueue it becomes a dead letter, since its due time is lost. A
-- place without a record goes to quarantine.
-- Returns flags: 0 = correct or unknown, 1 = a record without a place, 2 = a place without a record.
-- O(ids * (ready + log N))
local meta, records, in_flight, leases, errors = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ready, waiting, dead, quarantine, wake = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local now, listed, acting = tonumber(ARGV[1]), ARGV[2] == '1', ARGV[3] == '1'
local ids = {unpack(ARGV, 4)}

local known = redis.call('HGET', meta, 'schema')
-- include schema
-- include clock
-- include unreadable
local at = string.format('%.0f', now)
redis.call('HLEN', leases)
redis.call('HLEN', errors)
redis.call('LLEN', quarantine)
local idle = listed and redis.call('LLEN', wake) == 0
local flags, returned = {}, 0
if acting then
  -- include first_write
end
for i, id in ipairs(ids) do
  local has_record = redis.call('HEXISTS', records, id) == 1
  local placed = redis.call('ZSCORE', waiting, id) or redis.call('ZSCORE', in_flight, id)
    or redis.call('ZSCORE', dead, id) or (listed and redis.call('LPOS', ready, id))
  flags[i] = 0
  if has_record and not placed then
    flags[i] = 1
  elseif placed and not has_record then
    flags[i] = 2
  end
  if acting and flags[i] == 1 then
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
  elseif acting and flags[i] == 2 then
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
