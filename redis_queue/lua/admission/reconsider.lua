-- Check again what waits for places or for a rate: their limits have changed.
--
-- KEYS config
-- ARGV limit   COUNT  most rings and groups that wait for a rate
-- ARGV places  COUNT  number of places
-- ARGV more    LIST   these places; then queues in which messages wait for a rate, and whose workers are notified
--
-- Returns how many that waited for a rate are looked at again.
-- O((places + limit) * log groups)

local MAX_MEMBERS = 200
-- include flow_ready, flow_offer
local count = 0
-- first_write config
limit = math.min(limit, MAX_MEMBERS)
for i, name in ipairs(more) do
  if i <= places then
    offer({name})
  else
    local timers = root .. 'timers:' .. name
    for _, entry in ipairs(redis.call('ZRANGEBYSCORE', timers, '(0', '+inf', 'LIMIT', 0, math.max(0, limit - count))) do
      -- Its time is now; a worker that takes computes it again.
      redis.call('ZADD', timers, 0, entry)
      count = count + 1
    end
    changed[name] = true
  end
end
for queue in pairs(changed) do signal(queue) end
return count
