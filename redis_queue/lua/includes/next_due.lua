-- Read the server's clock unless the caller passed a time, and compute the time until the next entry is due.
--
-- Needs now, waiting. Sets now. Defines micros, next_in: microseconds until the next waiting entry is due, -1 = none.
local micros = 0
if now == 0 then
  local time = redis.call('TIME')
  now, micros = time[1] * 1000 + math.floor(time[2] / 1000), time[2] % 1000
end
local function next_in()
  local due = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  return due and math.max(0, math.ceil((due - now) * 1000 - micros)) or -1
end
