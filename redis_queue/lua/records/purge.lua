-- Delete messages or entries of one place, a key: the ready list, the delayed ones or the dead letters.
--
-- KEYS place, records, leases, errors, slot
-- ARGV limit     COUNT  most ids
-- ARGV sequence  TEXT   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
--
-- Returns how many were deleted: the next to be claimed, the next due, or the oldest first.
-- O(limit * log N)

-- include last_call
if last == sequence then return tonumber(outcome) end
-- check records, leases, errors
local listed = redis.call('TYPE', place).ok == 'list'
-- Oldest first: the right end of a list.
local ids = listed and redis.call('LRANGE', place, -limit, -1) or redis.call('ZRANGE', place, 0, limit - 1)
-- first_write leases
if #ids == 0 then return remember(0) end
redis.call('HDEL', records, unpack(ids))
redis.call('HDEL', leases, unpack(ids))
redis.call('HDEL', errors, unpack(ids))
if listed then redis.call('LTRIM', place, 0, -#ids - 1) else redis.call('ZREM', place, unpack(ids)) end
return remember(#ids)
