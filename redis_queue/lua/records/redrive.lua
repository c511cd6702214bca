-- Redrive dead letters, at once or spread over time; their deliveries are counted from zero again.
--
-- KEYS dead, records, leases, ready, waiting, quarantine, wake, slot
-- ARGV now       TIME  0 = the server's clock
-- ARGV after     MS    from now until the first one
-- ARGV gap       MS    between one and the next, may be a fraction
-- ARGV listed    FLAG  1 = a RedisQueue with a ready list, 0 = a DelayQueue
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV ids       LIST  of dead letters; others are skipped
--
-- Returns flags: 1 = redriven, 0 = was not dead, or its record is missing and it went to quarantine.
-- O(ids * log N)

-- include last_call
if last == sequence then return outcome end
-- include clock, unreadable, wake_dispatcher
-- check leases, ready, waiting, quarantine
local idle = redis.call('LLEN', wake) == 0
-- first_write leases
local flags, moved = {}, 0
for i, id in ipairs(ids) do
  flags[i] = 0
  local died = redis.call('ZSCORE', dead, id)
  if died and redis.call('HEXISTS', records, id) == 0 then
    redis.call('RPUSH', quarantine, unreadable(id))
    redis.call('HDEL', leases, id)
    redis.call('ZREM', dead, id)
  elseif died then
    local delay = math.floor(after + moved * gap)
    if moved == 0 and not listed then wake_dispatcher(now + delay) end
    local due = (delay > 0 or not listed) and string.format('%.0f', now + delay)
    if due then redis.call('ZADD', waiting, due, id) else redis.call('LPUSH', ready, id) end
    redis.call('HDEL', leases, id)
    redis.call('ZREM', dead, id)
    flags[i] = 1
    moved = moved + 1
  end
end
if moved > 0 and idle and listed then redis.call('RPUSH', wake, '1') end
return remember(table.concat(flags))
