-- Take a lock if nobody holds it or its lease has ended; else stand in the line of those who found it taken.
--
-- KEYS[1] holder     HASH  token, fence, expires_at (ms), released: the token that gave it back last
-- KEYS[2] line       ZSET  id -> since when it waits (ms)
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] token      new for every taking; the same again answers with the same fence
-- ARGV[3] lease      length in ms
-- ARGV[4] id         of who may be woken once the lock is free; "" = nobody
--
-- Returns {fence, ms until the lease ends}, {0, ms until the lease of the other one ends} = taken. A fence is greater
-- than all before: it follows the server's clock, so that the key of a lock which nobody uses can go after an hour.
-- O(log line)
local holder, line = KEYS[1], KEYS[2]
local now, token, lease, id = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local KEPT = 3600000
local MOST = 1000

-- include clock
local found = redis.call('HMGET', holder, 'token', 'fence', 'expires_at', 'released')
local waiting = redis.call('ZCARD', line)
local current, fence, ends = found[1] or '', tonumber(found[2]) or 0, tonumber(found[3]) or 0

-- A call that was long under way must not take again what was given back meanwhile.
if found[4] == token then return {0, 0} end
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
