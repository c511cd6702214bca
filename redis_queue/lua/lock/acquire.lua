-- Take a lock if it is free or its lease has ended; otherwise join the line of waiting callers.
--
-- KEYS[1] holder     HASH  token, fence, expires_at (ms), released: the token that gave it back last
-- KEYS[2] line       ZSET  id -> time since which it waits (ms)
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] token      new for every attempt; a repeat gets the same fence
-- ARGV[3] lease      length in ms
-- ARGV[4] id         of a caller to wake once the lock is free; "" = none
--
-- Returns {fence, ms until the lease ends}, or {0, ms until the lease of the holder ends} for a taken lock. A fence is
-- greater than all before: it follows the server's clock, so the key of an unused lock can expire after an hour.
-- O(log line)
local holder, line = KEYS[1], KEYS[2]
local now, token, lease, id = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local KEPT = 3600000
local MOST = 1000

-- include clock
local found = redis.call('HMGET', holder, 'token', 'fence', 'expires_at', 'released')
local waiting = redis.call('ZCARD', line)
local current, fence, ends = found[1] or '', tonumber(found[2]) or 0, tonumber(found[3]) or 0

-- A late call must not take the lock again after it was given back.
if found[4] == token then return {0, 0} end
-- As includes/first_write.lua.
redis.call('HDEL', holder, '')
if current ~= '' and current ~= token and ends > now then
  if id ~= '' and waiting < MOST then
    redis.call('ZADD', line, 'NX', string.format('%.0f', now), id)
    redis.call('PEXPIRE', line, string.format('%.0f', lease + KEPT))
  end
  return {0, ends - now}
end
if current ~= token then fence = math.max(fence + 1, now * 1000) end
ends = math.max(now + lease, current == token and ends or 0)
redis.call(
  'HSET', holder, 'token', token, 'fence', string.format('%.0f', fence), 'expires_at', string.format('%.0f', ends)
)
redis.call('PEXPIRE', holder, string.format('%.0f', ends - now + KEPT))
if id ~= '' then redis.call('ZREM', line, id) end
return {fence, ends - now}
