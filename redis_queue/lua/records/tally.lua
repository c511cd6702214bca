-- Count the records of a queue or shard and the ids in each place, consistently.
--
-- KEYS records, ready, waiting, in_flight, dead, quarantine
--
-- Returns {records, ready, waiting, in flight, dead, quarantined}
-- O(1)

return {
  redis.call('HLEN', records), redis.call('LLEN', ready), redis.call('ZCARD', waiting),
  redis.call('ZCARD', in_flight), redis.call('ZCARD', dead), redis.call('LLEN', quarantine),
}
