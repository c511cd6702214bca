-- Count the entries of a shard, consistently.
--
-- KEYS waiting, in_flight, dead, quarantine
-- ARGV now  TIME  0 = the server's clock
--
-- Returns {waiting, those of them that are due, in flight, dead, quarantined, next due time in ms or -1}
-- O(log waiting)

-- include clock
return {
  redis.call('ZCARD', waiting), redis.call('ZCOUNT', waiting, '-inf', string.format('%.0f', now)),
  redis.call('ZCARD', in_flight), redis.call('ZCARD', dead), redis.call('LLEN', quarantine),
  tonumber(redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] or -1),
}
