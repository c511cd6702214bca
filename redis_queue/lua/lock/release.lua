-- Give a lock back.
--
-- KEYS holder
-- ARGV token  TEXT  of the holder; a repeat gets the same reply until the next holder gives it back
--
-- Returns 1 = given back, 0 = lost.
-- O(1)

local found = redis.call('HMGET', holder, 'token', 'released')
if found[1] ~= token then return found[2] == token and 1 or 0 end
-- A first write that needs no memory.
redis.call('HDEL', holder, 'token', 'expires_at')
redis.call('HSET', holder, 'released', token)
redis.call('PEXPIRE', holder, 3600000)
return 1
