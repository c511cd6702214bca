-- Extend the lease of a lock; also late, unless another holder took it.
--
-- KEYS holder
-- ARGV now    TIME  0 = the server's clock
-- ARGV token  TEXT  of the holder
-- ARGV lease  MS    length from now; 0 = only check
--
-- Returns 1 = held, 0 = lost. A lease is never shortened.
-- O(1)

local KEPT = 3600000
-- include clock
local found = redis.call('HMGET', holder, 'token', 'expires_at')
if found[1] ~= token then return 0 end
local ends = math.max(now + lease, tonumber(found[2]) or 0)
if lease > 0 then
  -- first_write holder
  redis.call('HSET', holder, 'expires_at', string.format('%.0f', ends))
  redis.call('PEXPIRE', holder, string.format('%.0f', ends - now + KEPT))
end
return 1
