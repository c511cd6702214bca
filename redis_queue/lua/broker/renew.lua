-- Renew the leases of messages that one worker fetched from kombu's Redis transport.
--
-- A lease belongs to the caller while its time is the last one that the caller saw (to the second), or has the caller's
-- signature in its microseconds, if the reply to an earlier renewal was lost. A new holder writes another time. All
-- keys are on the one server of a broker, which is not a Cluster.
--
-- KEYS index, lease_ends
-- ARGV now        TIME    0 = the server's clock
-- ARGV lease      MS      for which the caller holds the messages, until it renews again
-- ARGV signature  NUMBER  1 to 999999, the same for all calls of one worker
-- ARGV held       LIST    tag, the last time that the caller saw, ...
--
-- Returns {the new time, lost tags...}
-- O(held * log index)

local SECOND, MICROSECONDS = 1, 1000000
-- include clock
local text = string.format('%.0f.%06d', math.ceil(now / 1000), signature)
local lease_end = string.format('%.3f', (now + lease) / 1000)
-- check lease_ends, index
-- first_write index
local reply, renewed, ends = {text}, {}, {}
for i = 1, #held, 2 do
  local found = tonumber(redis.call('ZSCORE', index, held[i]) or '')
  local known = found and math.abs(found - tonumber(held[i + 1])) <= SECOND
  local signed = found and math.floor(found % 1 * MICROSECONDS + 0.5) == signature
  if known or signed then
    renewed[#renewed + 1], ends[#ends + 1] = text, lease_end
    renewed[#renewed + 1], ends[#ends + 1] = held[i], held[i]
  else
    reply[#reply + 1] = held[i]
  end
end
if #renewed > 0 then
  redis.call('ZADD', index, 'XX', unpack(renewed))
  redis.call('ZADD', lease_ends, unpack(ends))
end
return reply
