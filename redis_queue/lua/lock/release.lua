-- Give a lock back and return the caller that waits longest.
--
-- KEYS[1] holder     HASH  token, fence, expires_at (ms), released: the token that gave it back last
-- KEYS[2] line       ZSET  id -> time since which it waits (ms)
-- ARGV[1] token      of the holder; a repeat gets the same reply until the next holder gives it back
--
-- Returns {1 = given back or 0 = lost, id of the caller that waits longest or ""}.
-- O(log line)
local holder, line = KEYS[1], KEYS[2]
local token = ARGV[1]
local KEPT = 3600000

local found = redis.call('HMGET', holder, 'token', 'released')
local first = redis.call('ZRANGE', line, 0, 0)[1] or ''
if found[1] == token then
  -- First, as includes/first_write.lua.
  redis.call('HDEL', holder, 'token', 'expires_at')
  redis.call('HSET', holder, 'released', token)
  redis.call('PEXPIRE', holder, KEPT)
elseif found[2] ~= token then
  return {0, ''}
end
return {1, first}
