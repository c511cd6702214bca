-- Count the records of a queue or shard and the ids in each place, consistently.
--
-- KEYS[1] records    HASH  id -> record
-- KEYS[2] ready      LIST  ids, next one at the right end
-- KEYS[3] waiting    ZSET  id -> due time (ms)
-- KEYS[4] in_flight  ZSET  id -> end of its lease (ms)
-- KEYS[5] dead       ZSET  id -> time it died (ms)
-- KEYS[6] quarantine LIST  unreadable records
--
-- Returns {records, ready, waiting, in flight, dead, quarantined}
-- O(1)
local records, ready, waiting, in_flight, dead, quarantine = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

return {
  redis.call('HLEN', records), redis.call('LLEN', ready), redis.call('ZCARD', waiting),
  redis.call('ZCARD', in_flight), redis.call('ZCARD', dead), redis.call('LLEN', quarantine),
}
