-- Leave the line of idle workers. If the caller was the listener, the worker that has waited longest is woken.
--
-- KEYS line, listener
-- ARGV channel  TEXT  of the caller
--
-- Returns 1 if the caller was the listener, else 0.
-- O(log line)

redis.call('ZREM', line, channel)
if redis.call('GET', listener) ~= channel then return 0 end
redis.call('DEL', listener)
local wakes = 1
-- include wake_idle
return 1
