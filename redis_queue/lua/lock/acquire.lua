-- Take a lock if it is free or its lease has ended.
--
-- KEYS holder, slot
-- ARGV now       TIME  0 = the server's clock
-- ARGV token     TEXT  new for every attempt; a repeat gets the same fence
-- ARGV lease     MS    length
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
--
-- Returns {fence, ms until the lease ends}, or {0, ms until the lease of the holder ends} for a taken lock. A fence is
-- greater than all before: it follows the server's clock, so the key of an unused lock can expire after an hour.
-- O(1)

local KEPT = 3600000
-- include last_call, clock
local found = redis.call('HMGET', holder, 'token', 'fence', 'expires_at', 'released')
local current, fence, ends = found[1] or '', tonumber(found[2]) or 0, tonumber(found[3]) or 0

-- A call that arrives late must not take the lock: its caller knows that it was refused, or has given the lock back.
local is_late = (last == sequence or found[4] == token) and current ~= token
-- first_write holder
remember('')
if is_late or (current ~= '' and current ~= token and ends > now) then return {0, math.max(0, ends - now)} end
if current ~= token then fence = math.max(fence + 1, now * 1000) end
ends = math.max(now + lease, current == token and ends or 0)
local fence_text, ends_text = string.format('%.0f', fence), string.format('%.0f', ends)
redis.call('HSET', holder, 'token', token, 'fence', fence_text, 'expires_at', ends_text)
redis.call('PEXPIRE', holder, string.format('%.0f', ends - now + KEPT))
return {fence, ends - now}
