-- Move delayed messages that are due to the end of the ready list.
--
-- KEYS ready, waiting, wake
-- ARGV now    TIME   0 = the server's clock
-- ARGV limit  COUNT  most messages to move
--
-- Returns how many were moved.
-- O(limit * log waiting)

-- include clock
-- check ready
local idle = redis.call('LLEN', wake) == 0
local ids = redis.call('ZRANGEBYSCORE', waiting, '-inf', string.format('%.0f', now), 'LIMIT', 0, limit)
if #ids == 0 then return 0 end
-- first_write waiting
redis.call('LPUSH', ready, unpack(ids))
redis.call('ZREM', waiting, unpack(ids))
if idle then redis.call('RPUSH', wake, '1') end
return #ids
