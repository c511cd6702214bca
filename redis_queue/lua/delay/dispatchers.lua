-- Read the reports of dispatchers and the time.
--
-- KEYS[1] dispatchers HASH  name -> "<ms when it was seen> <JSON>"
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[...] members  names, at least one
--
-- Returns {now in ms, the report of each or false}
-- O(members)
local dispatchers = KEYS[1]
local now = tonumber(ARGV[1])
local members = {unpack(ARGV, 2)}

-- include clock
local found = redis.call('HMGET', dispatchers, unpack(members))
return {now, unpack(found)}
