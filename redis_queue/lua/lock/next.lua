-- Remove a caller from the line and return the one that waits longest now.
--
-- KEYS[1] line       ZSET  id -> time since which it waits (ms)
-- ARGV[1] id         of a caller that was woken, or no longer waits
--
-- Returns the id of the caller that waits longest, or "".
-- O(log line)
local line = KEYS[1]
local id = ARGV[1]

redis.call('ZREM', line, id)
return redis.call('ZRANGE', line, 0, 0)[1] or ''
