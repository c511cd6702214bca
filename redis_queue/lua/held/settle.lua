-- Remove the in-flight record of a settled message of kombu's Redis transport.
--
-- KEYS[1] index    ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked  HASH  delivery tag -> message, exchange and routing key as JSON
-- ARGV[1] tag      delivery tag
--
-- Returns 1, or 0 if it was not in flight.
-- O(log index)
local index, unacked = KEYS[1], KEYS[2]
local tag = ARGV[1]

redis.call('ZREM', index, tag)
return redis.call('HDEL', unacked, tag)
