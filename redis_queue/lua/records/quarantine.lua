-- Move a claimed but unreadable record to quarantine.
--
-- KEYS records, in_flight, leases, errors, quarantine
-- ARGV now     TIME  0 = the server's clock
-- ARGV id      TEXT  of the message
-- ARGV token   TEXT  of its lease
-- ARGV reason  TEXT  why it is unreadable
--
-- Returns 1 = moved, 0 = lease lost (also when an earlier call moved it).
-- O(log in flight)

-- include clock, unreadable
local current = string.match(redis.call('HGET', leases, id) or '', '^%d+ (.+)$')
if current ~= token then return 0 end
-- check in_flight
local record = redis.call('HGET', records, id)
redis.call('HDEL', errors, id)
redis.call('RPUSH', quarantine, unreadable(id, record, reason))
redis.call('HDEL', records, id)
redis.call('HDEL', leases, id)
redis.call('ZREM', in_flight, id)
return 1
