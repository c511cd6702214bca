-- Take a lock if it is free or its lease has ended.
--
-- KEYS holder
-- ARGV now    TIME  0 = the server's clock
-- ARGV token  TEXT  new for every attempt; a repeat gets the same fence
-- ARGV lease  MS    length
--
-- Returns {fence, ms until the lease ends}, or {0, ms until the lease of the holder ends} for a taken lock. A fence is
-- greater than all before: it follows the server's clock, so the key of an unused lock can expire after an hour.
-- O(1)

local KEPT = 3600000
-- include clock
local found = redis.call('HMGET', holder, 'token', 'fence', 'expires_at', 'released')
local current, fence, ends = found[1] or '', tonumber(found[2]) or 0, tonumber(found[3]) or 0

-- A late call must not take the lock again after it was given back.
if found[4] == token then return {0, 0} end
-- first_write holder
if current ~= '' and current ~= token and ends > now then return {0, ends - now} end
if current ~= token then fence = math.max(fence + 1, now * 1000) end
ends = math.max(now + lease, current == token and ends or 0)
redis.call(
  'HSET', holder, 'token', token, 'fence', string.format('%.0f', fence), 'expires_at', string.format('%.0f', ends)
)
redis.call('PEXPIRE', holder, string.format('%.0f', ends - now + KEPT))
return {fence, ends - now}
