-- Delete the oldest messages of a list of kombu's Redis transport.
--
-- KEYS list, slot
-- ARGV sequence  TEXT   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV limit     COUNT  most messages
--
-- Returns how many were deleted.
-- O(limit)

local MAX_MESSAGES = 500
-- include last_call
if last == sequence then return tonumber(outcome) end
local count = math.floor(math.max(0, math.min(limit, MAX_MESSAGES, redis.call('LLEN', list))))
redis.call('LTRIM', list, 0, -1 - count)
remember(string.format('%.0f', count))
return count
