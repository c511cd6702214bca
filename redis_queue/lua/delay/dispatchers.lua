-- Read the reports of dispatchers and the time.
--
-- KEYS dispatchers
-- ARGV now      TIME  0 = the server's clock
-- ARGV members  LIST  names, at least one
--
-- Returns {now in ms, the report of each or false}
-- O(members)

-- include clock
local found = redis.call('HMGET', dispatchers, unpack(members))
return {now, unpack(found)}
