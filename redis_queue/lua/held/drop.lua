-- Delete the oldest messages of a list of kombu's Redis transport.
--
-- KEYS[1] list       LIST    messages of one queue and priority
-- KEYS[2] slot       STRING  number and outcome of this caller's last call
-- ARGV[1] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[2] limit      most messages
--
-- Returns how many were deleted.
-- O(limit)
local list, slot = KEYS[1], KEYS[2]
local sequence, limit = ARGV[1], tonumber(ARGV[2])
local MOST = 500

-- include last_call
if last == sequence then return tonumber(outcome) end
local count = math.floor(math.max(0, math.min(limit, MOST, redis.call('LLEN', list))))
redis.call('LTRIM', list, 0, -1 - count)
remember(string.format('%.0f', count))
return count
