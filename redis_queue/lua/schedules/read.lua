-- Read schedules: those with these names, or those that dispatchers have to look at.
--
-- KEYS schedules, schedule_states, schedule_looks
-- ARGV now    TIME   0 = the server's clock
-- ARGV limit  COUNT  most schedules to look at; 0 = those with the names
-- ARGV names  LIST   their names
--
-- Returns {the time in ms, microseconds until the next look (0 = now, -1 = none), then name, state, definition and next
-- look of each; "" for what is missing}. Stops after the schedule that makes 1 MiB.
-- O(limit + names + log schedules)

local MAX_BYTES = 1048576
-- include next_due
local at = string.format('%.0f', now)
if limit > 0 then names = redis.call('ZRANGEBYSCORE', schedule_looks, '-inf', at, 'LIMIT', 0, limit) end
local reply, bytes = {at, 0}, 0
for _, name in ipairs(names) do
  local definition = redis.call('HGET', schedules, name) or ''
  local state = redis.call('HGET', schedule_states, name) or ''
  reply[#reply + 1] = name
  reply[#reply + 1] = state
  reply[#reply + 1] = definition
  reply[#reply + 1] = redis.call('ZSCORE', schedule_looks, name) or ''
  bytes = bytes + #definition + #state
  if bytes >= MAX_BYTES then break end
end
if #names == 0 then reply[2] = next_in(redis.call('ZRANGE', schedule_looks, 0, 0, 'WITHSCORES')) end
return reply
