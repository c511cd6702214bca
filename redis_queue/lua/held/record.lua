-- Record a message that was popped from a list of kombu's Redis transport as in flight from now on.
--
-- kombu uses the clock of the worker here: hosts with other clocks would put the message back at once, or an hour late.
--
-- KEYS[1] index    ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked  HASH  delivery tag -> message, exchange and routing key as JSON
-- KEYS[3] lease_ends  ZSET  delivery tag -> when its lease ends (s)
-- ARGV[1] now      ms; 0 = the server's TIME
-- ARGV[2] tag      delivery tag
-- ARGV[3] record   message, exchange and routing key as JSON
-- ARGV[4] lease    ms for which the caller holds the message, until it renews
--
-- Returns the time (s).
-- O(log index)
local index, unacked, lease_ends = KEYS[1], KEYS[2], KEYS[3]
local now, tag, record, lease = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])

-- include clock
redis.call('ZCARD', index)
redis.call('ZCARD', lease_ends)
-- As includes/first_write.lua.
redis.call('HDEL', unacked, '')
local text, lease_end = string.format('%.3f', now / 1000), string.format('%.3f', (now + lease) / 1000)
redis.call('HSET', unacked, tag, record)
redis.call('ZADD', index, text, tag)
redis.call('ZADD', lease_ends, lease_end, tag)
return text
