-- Give a lock back; tell who waits longest.
--
-- KEYS[1] holder     HASH  token, fence, expires_at (ms), released: the token that gave it back last
-- KEYS[2] line       ZSET  id -> since when it waits (ms)
-- ARGV[1] token      of who holds it; the same again answers the same until the next one gives it back
--
-- Returns {1 = given back or 0 = lost, id of who waits longest or ""}.
-- O(log line)
local holder, line = KEYS[1], KEYS[2]
local token = ARGV[1]
local KEPT = 3600000

local found = redis.call('HMGET', holder, 'token', 'released')
local first = redis.call('ZRANGE', line, 0, 0)[1] or ''
if found[1] == token then
  -- First what needs no memory: a lock can be given back when Redis is full.
  redis.call('HDEL', holder, 'token', 'expires_at')
  redis.call('HSET', holder, 'released', token)
  redis.call('PEXPIRE', holder, KEPT)
elseif found[2] ~= token then
  return {0, ''}
end
return {1, first}
