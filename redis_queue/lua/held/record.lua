-- Record a message that was popped from a list of kombu's Redis transport as in flight from now on.
--
-- kombu uses the clock of the worker here: hosts with other clocks would put the message back at once, or an hour late.
--
-- KEYS[1] index    ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked  HASH  delivery tag -> message, exchange and routing key as JSON
-- ARGV[1] now      ms; 0 = the server's TIME
-- ARGV[2] tag      delivery tag
-- ARGV[3] record   message, exchange and routing key as JSON
--
-- Returns the time (s).
-- O(log index)
local index, unacked = KEYS[1], KEYS[2]
local now, tag, record = tonumber(ARGV[1]), ARGV[2], ARGV[3]

-- include clock
redis.call('ZCARD', index)
-- As includes/first_write.lua.
redis.call('HDEL', unacked, '')
local text = string.format('%.3f', now / 1000)
redis.call('HSET', unacked, tag, record)
redis.call('ZADD', index, text, tag)
return text
