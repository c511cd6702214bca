-- Read the numbers of dispatched entries in the last minutes.
--
-- KEYS minutes
-- ARGV now    TIME   0 = the server's clock
-- ARGV limit  COUNT  number of minutes with the current one, at most a day
--
-- Returns {the current minute since the epoch, then the field of each minute or false, oldest first}. A field may be of
-- another day: the caller compares its minute.
-- O(limit)

local MINUTES = 1440
-- include clock
local minute = math.floor(now / 60000)
local fields = {}
limit = math.min(limit, MINUTES)
for i = 1, limit do fields[i] = (minute - limit + i) % MINUTES end
return {minute, unpack(redis.call('HMGET', minutes, unpack(fields)))}
