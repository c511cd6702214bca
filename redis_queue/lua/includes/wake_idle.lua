-- Wake the idle workers that have waited longest; those that are gone are removed from the line.
--
-- Needs line, wakes. Without permission to publish, they find the messages when they look.
for _ = 1, 100 do
  local idle = wakes > 0 and redis.call('ZRANGE', line, 0, 0)[1]
  if not idle then break end
  redis.call('ZREM', line, idle)
  local told = redis.pcall('PUBLISH', idle, '')
  wakes = wakes - (tonumber(told) or 1)
end
