-- Store revoked task ids, to recognise newer calls with the same id.
--
-- KEYS revoked, slot
-- ARGV now       TIME  0 = the server's clock
-- ARGV age       MS    after which a revoked id is removed
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV ids       LIST  of revoked tasks
--
-- Returns how many old ids were removed, at most 200 and two for each id.
-- O((ids + 200) * log revoked)

local MAX_REVOKED, PAGE = 100000, 200
-- include clock, last_call
if last == sequence then return tonumber(outcome) end
local scores = {}
for _, id in ipairs(ids) do
  scores[#scores + 1], scores[#scores + 2] = string.format('%.0f', now), id
end
-- A revoke removes stored entries.
-- first_write revoked
redis.call('ZADD', revoked, unpack(scores))
local over = redis.call('ZCARD', revoked) - MAX_REVOKED
local oldest, gone = redis.call('ZRANGE', revoked, 0, PAGE + 2 * #ids - 1, 'WITHSCORES'), {}
for i = 1, #oldest, 2 do
  if #gone < over or tonumber(oldest[i + 1]) < now - age then gone[#gone + 1] = oldest[i] end
end
if #gone > 0 then redis.call('ZREM', revoked, unpack(gone)) end
return remember(#gone)
