-- Give a lock back.
--
-- KEYS holder
-- ARGV token  TEXT  of the holder; a repeat gets the same reply until the next holder gives it back
--
-- Returns 1 = given back, 0 = lost.
-- O(1)

local KEPT = 3600000
local found = redis.call('HMGET', holder, 'token', 'released')
if found[1] == token then
  -- A first write that needs no memory.
  redis.call('HDEL', holder, 'token', 'expires_at')
  redis.call('HSET', holder, 'released', token)
  redis.call('PEXPIRE', holder, KEPT)
elseif found[2] ~= token then
  return 0
end
return 1
