-- Take one out of the line; tell who waits longest now.
--
-- KEYS[1] line       ZSET  id -> since when it waits (ms)
-- ARGV[1] id         who was woken, or waits no more
--
-- Returns the id of who waits longest, or "".
-- O(log line)
local line = KEYS[1]
local id = ARGV[1]

redis.call('ZREM', line, id)
return redis.call('ZRANGE', line, 0, 0)[1] or ''
