-- Wake the dispatcher if a new due time is earlier than all others.
--
-- Needs waiting, wake. Defines wake_dispatcher.
local earliest = tonumber(redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]) or math.huge
local function wake_dispatcher(due)
  -- Without this permission, dispatchers only look later.
  if due < earliest then redis.pcall('PUBLISH', wake, '1') end
end
