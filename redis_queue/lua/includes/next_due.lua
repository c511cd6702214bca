-- Read the server's clock unless the caller passed a time, and compute the time until the next entry is due.
--
-- Needs now. Sets now. Defines micros, next_in: takes what is due first, with its time in ms, and returns the
-- microseconds until then, 0 = it is due, -1 = none.
local micros = 0
if now == 0 then
  local time = redis.call('TIME')
  now, micros = time[1] * 1000 + math.floor(time[2] / 1000), time[2] % 1000
end
local function next_in(first)
  local due = tonumber(first[2]) or math.huge
  return due < math.huge and math.max(0, math.ceil((due - now) * 1000 - micros)) or -1
end
