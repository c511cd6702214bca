-- Renew the leases of messages that one worker fetched from kombu's Redis transport.
--
-- A lease belongs to the caller while its time is the last one that the caller saw (to the second), or has the caller's
-- signature in its microseconds, if the reply to an earlier renewal was lost. A new holder writes another time. Both
-- keys are on the one server of a broker, which is not a Cluster.
--
-- KEYS[1] index      ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] timeouts   ZSET  visibility timeout (s) -> when a worker with it was last seen (s)
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] timeout    the caller's visibility timeout (s)
-- ARGV[3] signature  1 to 999999, the same for all calls of one worker
-- ARGV[4] keep       s for which a timeout is remembered
-- ARGV[...] held     tag, the last time that the caller saw, ...
--
-- Returns {the new time, lowest visibility timeout in use by another worker or "", lost tags...}
-- O(held * log index)
local index, timeouts = KEYS[1], KEYS[2]
local now, timeout, signature, keep = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local held = {unpack(ARGV, 5)}
local SECOND, MICROSECONDS = 1, 1000000

-- include clock
local text = string.format('%.0f.%06d', math.ceil(now / 1000), signature)
redis.call('ZCARD', index)
-- As includes/first_write.lua.
redis.call('ZREM', index, '')
redis.call('ZADD', timeouts, text, string.format('%.6g', timeout))
redis.call('EXPIRE', timeouts, keep)
local reply = {text, ''}
local seen = redis.call('ZRANGE', timeouts, 0, -1, 'WITHSCORES')
for i = #seen - 1, 1, -2 do
  local other = tonumber(seen[i])
  local lowest = tonumber(reply[2]) or timeout
  if other < lowest and now / 1000 - tonumber(seen[i + 1]) <= other then reply[2] = seen[i] end
end
local renewed = {}
for i = 1, #held, 2 do
  local found = tonumber(redis.call('ZSCORE', index, held[i]) or '')
  local known = found and math.abs(found - tonumber(held[i + 1])) <= SECOND
  local signed = found and math.floor(found % 1 * MICROSECONDS + 0.5) == signature
  if known or signed then
    renewed[#renewed + 1] = text
    renewed[#renewed + 1] = held[i]
  else
    reply[#reply + 1] = held[i]
  end
end
if #renewed > 0 then redis.call('ZADD', index, 'XX', unpack(renewed)) end
return reply
