-- Tell when the next waiting entry is due.
--
-- KEYS[1] waiting    ZSET  id -> due time (ms)
-- ARGV[1] now        ms; 0 = the server's TIME
--
-- Returns microseconds until then, 0 if it is due, -1 if none waits.
-- O(1)
local waiting = KEYS[1]
local now = tonumber(ARGV[1])

local due = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
if not due then return -1 end
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + time[2] / 1000
end
return math.max(0, math.ceil((due - now) * 1000))
