-- Count the entries of a shard, consistently.
--
-- KEYS[1] waiting    ZSET  id -> due time (ms)
-- KEYS[2] in_flight  ZSET  id -> end of its lease (ms)
-- KEYS[3] dead       ZSET  id -> time it died (ms)
-- KEYS[4] quarantine LIST  unreadable records
-- ARGV[1] now        ms; 0 = the server's TIME
--
-- Returns {waiting, those of them that are due, in flight, dead, quarantined, next due time in ms or -1}
-- O(log waiting)
local waiting, in_flight, dead, quarantine = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now = tonumber(ARGV[1])

-- include clock
return {
  redis.call('ZCARD', waiting), redis.call('ZCOUNT', waiting, '-inf', string.format('%.0f', now)),
  redis.call('ZCARD', in_flight), redis.call('ZCARD', dead), redis.call('LLEN', quarantine),
  tonumber(redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] or -1),
}
