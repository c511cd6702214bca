-- Record a message that was popped from a list of kombu's Redis transport as in flight from now on.
--
-- kombu uses the clock of the worker here: hosts with other clocks would put the message back at once, or an hour late.
--
-- KEYS index, unacked, lease_ends
-- ARGV now     TIME  0 = the server's clock
-- ARGV tag     TEXT  delivery tag
-- ARGV record  TEXT  message, exchange and routing key as JSON
-- ARGV lease   MS    for which the caller holds the message, until it renews
--
-- Returns the time (s).
-- O(log index)

-- include clock
-- check index, lease_ends
-- first_write unacked
local text, lease_end = string.format('%.3f', now / 1000), string.format('%.3f', (now + lease) / 1000)
redis.call('HSET', unacked, tag, record)
redis.call('ZADD', index, text, tag)
redis.call('ZADD', lease_ends, lease_end, tag)
return text
