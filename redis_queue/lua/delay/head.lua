-- Tell when the next waiting entry is due.
--
-- KEYS[1] waiting    ZSET  id -> due time (ms)
-- ARGV[1] now        ms; 0 = the server's TIME
--
-- Returns microseconds until then, 0 if it is due, -1 if no entry waits.
-- O(1)
local waiting = KEYS[1]
local now = tonumber(ARGV[1])

-- include next_due
return next_in()
