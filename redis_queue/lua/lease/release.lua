-- Give back claimed messages or entries, to be claimed again now or later, or make dead letters of them.
--
-- KEYS[1] meta       HASH  counters
-- KEYS[2] in_flight  ZSET  id -> end of its lease (ms)
-- KEYS[3] leases     HASH  id -> "<deliveries> <token>"
-- KEYS[4] errors     HASH  id -> last reason
-- KEYS[5] ready      LIST  ids, next one at the right end
-- KEYS[6] waiting    ZSET  id -> due time (ms)
-- KEYS[7] dead       ZSET  id -> time it died (ms)
-- KEYS[8] wake       LIST  at most one item
-- KEYS[9] slot       STRING number and outcome of this caller's last call
-- ARGV[1] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[2] now        ms; 0 = the server's TIME
-- ARGV[3] delay      ms; 0 = at once, before all others
-- ARGV[4] reason     stored with the message; "" keeps the previous one
-- ARGV[5] max_deliveries  1 = dead now, 0 = never dead
-- ARGV[6] counted    0 = this delivery does not count
-- ARGV[7] listed     1 = a RedisQueue with a ready list, 0 = a DelayQueue
-- ARGV[...] held     id, token; two for each
--
-- Returns flags: 0 = lease lost, 1 = given back, 2 = dead.
-- O(held * log N)
local meta, in_flight, leases, errors, ready = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local waiting, dead, wake, slot = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local sequence, now = ARGV[1], tonumber(ARGV[2])
local delay, reason = tonumber(ARGV[3]), ARGV[4]
local max_deliveries, counted, listed = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7] == '1'
local held = {unpack(ARGV, 8)}
local MAX_REASON = 8000

-- include last_call
if last == sequence then return outcome end
if #reason > MAX_REASON then return redis.error_reply('ERR reason: must be at most ' .. MAX_REASON .. ' bytes') end
-- include clock
redis.call('ZCARD', in_flight)
redis.call('HLEN', meta)
redis.call('HLEN', errors)
redis.call('LLEN', ready)
redis.call('ZCARD', waiting)
redis.call('ZCARD', dead)
local idle = redis.call('LLEN', wake) == 0

-- As includes/first_write.lua. A user without permission to remove from in_flight gets its error here, before anything
-- is in two places.
redis.call('ZREM', in_flight, '')
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
      if delay > 0 or not listed then
        redis.call('ZADD', waiting, string.format('%.0f', now + delay), id)
      else
        redis.call('RPUSH', ready, id)
      end
      redis.call('HINCRBY', meta, 'redelivered', 1)
    end
    if deliveries > 0 then
      redis.call('HSET', leases, id, deliveries)
    else
      redis.call('HDEL', leases, id)
    end
    redis.call('ZREM', in_flight, id)
    done[#done + 1] = id
  end
  flags[(i + 1) / 2] = flag
end
flags = table.concat(flags)
if #done == 0 then return flags end
if idle and listed then redis.call('RPUSH', wake, '1') end
return remember(flags)
