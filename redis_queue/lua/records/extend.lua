-- Extend leases; also late ones, unless they were put back.
--
-- KEYS in_flight, leases
-- ARGV now    TIME  0 = the server's clock
-- ARGV lease  MS    length from now; 0 = only check
-- ARGV held   LIST  id, token; two for each
--
-- Returns {new end of the lease, flags}: 1 = held, 0 = lease lost. A lease is never shortened.
-- O(held * log in flight)

-- include clock
local ids = {}
for i = 1, #held, 2 do ids[#ids + 1] = held[i] end
local current = redis.call('HMGET', leases, unpack(ids))
local expires = string.format('%.0f', now + lease)
local flags, scores = {}, {}
for i, id in ipairs(ids) do
  local token = ' ' .. held[2 * i]
  if current[i] and string.sub(current[i], -#token) == token then
    flags[i] = 1
    scores[#scores + 1], scores[#scores + 2] = expires, id
  else
    flags[i] = 0
  end
end
if lease > 0 and #scores > 0 then
  -- first_write leases
  redis.call('ZADD', in_flight, 'XX', 'GT', unpack(scores))
end
return {tonumber(expires), table.concat(flags)}
