-- Move delayed messages that are due to the end of the ready list.
--
-- KEYS[1] ready      LIST  ids, next one at the right end
-- KEYS[2] waiting    ZSET  id -> due time (ms)
-- KEYS[3] wake       LIST  at most one item
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] limit      most messages to move
--
-- Returns how many were moved.
-- O(limit * log waiting)
local ready, waiting, wake = KEYS[1], KEYS[2], KEYS[3]
local now, limit = tonumber(ARGV[1]), tonumber(ARGV[2])

-- include clock
redis.call('LLEN', ready)
local idle = redis.call('LLEN', wake) == 0
local ids = redis.call('ZRANGEBYSCORE', waiting, '-inf', string.format('%.0f', now), 'LIMIT', 0, limit)
if #ids == 0 then return 0 end
-- As includes/first_write.lua.
redis.call('ZREM', waiting, '')
redis.call('LPUSH', ready, unpack(ids))
redis.call('ZREM', waiting, unpack(ids))
if idle then redis.call('RPUSH', wake, '1') end
return #ids
