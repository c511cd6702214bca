-- Move a claimed but unreadable record to quarantine.
--
-- KEYS[1] records    HASH  id -> record
-- KEYS[2] in_flight  ZSET  id -> end of its lease (ms)
-- KEYS[3] leases     HASH  id -> "<deliveries> <token>"
-- KEYS[4] errors     HASH  id -> last reason
-- KEYS[5] quarantine LIST  unreadable records
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] id         of the message
-- ARGV[3] token      of its lease
-- ARGV[4] reason     why it is unreadable
--
-- Returns 1 = moved, 0 = lease lost (also when an earlier call moved it).
-- O(log in flight)
local records, in_flight, leases, errors, quarantine = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now, id, token, reason = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]

-- include clock
-- include unreadable
local current = string.match(redis.call('HGET', leases, id) or '', '^%d+ (.+)$')
if current ~= token then return 0 end
redis.call('ZCARD', in_flight)
local record = redis.call('HGET', records, id)
redis.call('HDEL', errors, id)
redis.call('RPUSH', quarantine, unreadable(id, record, reason))
redis.call('HDEL', records, id)
redis.call('HDEL', leases, id)
redis.call('ZREM', in_flight, id)
return 1
