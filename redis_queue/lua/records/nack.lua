-- Give back claimed messages or entries, to be claimed again now or later, or make dead letters of them.
--
-- KEYS meta, in_flight, leases, errors, ready, waiting, dead, wake, slot
-- ARGV sequence        TEXT   number of the call, grows per caller; a repeat gets the same reply, a lower one fails
-- ARGV now             TIME   0 = the server's clock
-- ARGV delay           MS     0 = at once, before all others
-- ARGV reason          TEXT   stored with the message; "" keeps the previous one
-- ARGV max_deliveries  COUNT  1 = dead now, 0 = never dead
-- ARGV counted         FLAG   0 = this delivery does not count
-- ARGV listed          FLAG   1 = a RedisQueue with a ready list, 0 = a DelayQueue
-- ARGV held            LIST   id, token; two for each
--
-- Returns flags: 0 = lease lost, 1 = given back, 2 = dead.
-- O(held * log N)

local MAX_REASON = 8000
-- include last_call
if last == sequence then return outcome end
if #reason > MAX_REASON then return redis.error_reply('ERR reason: must be at most ' .. MAX_REASON .. ' bytes') end
-- include clock
-- check in_flight, meta, errors, ready, waiting, dead
local idle = redis.call('LLEN', wake) == 0

-- A user without permission to remove from in_flight gets its error here, before anything is in two places.
-- first_write in_flight
local flags, done = {}, {}
-- Last one first, so that the first one ends up at the very front.
for i = #held - 1, 1, -2 do
  local id, token = held[i], held[i + 1]
  local deliveries, current = string.match(redis.call('HGET', leases, id) or '', '^(%d+) (.+)$')
  local flag = 0
  if current == token then
    deliveries = tonumber(deliveries) - (counted and 0 or 1)
    if reason ~= '' then redis.call('HSET', errors, id, reason) end
    if counted and max_deliveries > 0 and deliveries >= max_deliveries then
      flag = 2
      redis.call('ZADD', dead, string.format('%.0f', now), id)
      redis.call('HINCRBY', meta, 'dead', 1)
    else
      flag = 1
      local due = (delay > 0 or not listed) and string.format('%.0f', now + delay)
      if due then redis.call('ZADD', waiting, due, id) else redis.call('RPUSH', ready, id) end
      redis.call('HINCRBY', meta, 'redelivered', 1)
    end
    if deliveries > 0 then redis.call('HSET', leases, id, deliveries) else redis.call('HDEL', leases, id) end
    redis.call('ZREM', in_flight, id)
    done[#done + 1] = id
  end
  flags[(i + 1) / 2] = flag
end
flags = table.concat(flags)
if #done == 0 then return flags end
if idle and listed then redis.call('RPUSH', wake, '1') end
return remember(flags)
