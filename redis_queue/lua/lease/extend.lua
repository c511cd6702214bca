-- Extend leases; also late ones, unless they were put back.
--
-- KEYS[1] in_flight  ZSET  id -> end of its lease (ms)
-- KEYS[2] leases     HASH  id -> "<deliveries> <token>"
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] lease      length from now in ms; 0 = only check
-- ARGV[...] held     id, token; two for each
--
-- Returns {new end of the lease, flags}: 1 = held, 0 = lease lost. A lease is never shortened.
-- O(held * log in flight)
local in_flight, leases = KEYS[1], KEYS[2]
local now, lease = tonumber(ARGV[1]), tonumber(ARGV[2])
local held = {unpack(ARGV, 3)}

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
    scores[#scores + 1] = expires
    scores[#scores + 1] = id
  else
    flags[i] = 0
  end
end
if lease > 0 and #scores > 0 then
  -- include first_write
  redis.call('ZADD', in_flight, 'XX', 'GT', unpack(scores))
end
return {tonumber(expires), table.concat(flags)}
