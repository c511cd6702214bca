-- Give a lock back.
--
-- KEYS[1] holder     HASH  token, fence, expires_at (ms), released: the token that gave it back last
-- ARGV[1] token      of the holder; a repeat gets the same reply until the next holder gives it back
--
-- Returns 1 = given back, 0 = lost.
-- O(1)
local holder = KEYS[1]
local token = ARGV[1]
local KEPT = 3600000

local found = redis.call('HMGET', holder, 'token', 'released')
if found[1] == token then
  -- First, as includes/first_write.lua.
  redis.call('HDEL', holder, 'token', 'expires_at')
  redis.call('HSET', holder, 'released', token)
  redis.call('PEXPIRE', holder, KEPT)
elseif found[2] ~= token then
  return 0
end
return 1
