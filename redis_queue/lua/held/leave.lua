-- Leave the line of idle workers. If the caller was the listener, the worker that has waited longest is woken.
--
-- KEYS[1] line      ZSET    channel of an idle worker -> when it last looked for messages (ms)
-- KEYS[2] listener  STRING  channel of the listener
-- ARGV[1] channel   of the caller
--
-- Returns 1 if the caller was the listener, else 0.
-- O(log line)
local line, listener = KEYS[1], KEYS[2]
local channel = ARGV[1]

redis.call('ZREM', line, channel)
if redis.call('GET', listener) ~= channel then return 0 end
redis.call('DEL', listener)
local wakes = 1
-- include wake_idle
return 1
