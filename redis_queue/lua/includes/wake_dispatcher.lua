-- Wake dispatchers if something is due earlier than all waiting entries until now.
--
-- Needs waiting, wake. Defines wake_dispatcher.
local earliest = tonumber(redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]) or math.huge
local function wake_dispatcher(due)
  -- A user without this permission only makes others look later.
  if due < earliest then redis.pcall('PUBLISH', wake, '1') end
end
