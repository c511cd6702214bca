-- Read the server's clock unless the caller passed a time.
--
-- Needs now. Sets now.
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
