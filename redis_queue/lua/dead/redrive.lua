-- Redrive dead letters, at once or spread over time; their deliveries are counted from zero again.
--
-- KEYS[1] dead       ZSET  id -> time it died (ms)
-- KEYS[2] records    HASH  id -> record
-- KEYS[3] leases     HASH  id -> deliveries
-- KEYS[4] ready      LIST  ids, next one at the right end
-- KEYS[5] waiting    ZSET  id -> due time (ms)
-- KEYS[6] quarantine LIST  unreadable records
-- KEYS[7] wake       LIST  at most one item
-- KEYS[8] slot       STRING number and outcome of this caller's last call
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] after      ms from now until the first one
-- ARGV[3] gap        ms between one and the next, may be a fraction
-- ARGV[4] listed     1 = a RedisQueue with a ready list, 0 = a DelayQueue
-- ARGV[5] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[...] ids      of dead letters; others are skipped
--
-- Returns flags: 1 = redriven, 0 = was not dead, or its record is missing and it went to quarantine.
-- O(ids * log N)
local dead, records, leases, ready = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local waiting, quarantine, wake, slot = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local now, after, gap, listed = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local sequence = ARGV[5]
local ids = {unpack(ARGV, 6)}

-- include last_call
if last == sequence then return outcome end
-- include clock
-- include unreadable
redis.call('HLEN', leases)
redis.call('LLEN', ready)
redis.call('ZCARD', waiting)
redis.call('LLEN', quarantine)
local idle = redis.call('LLEN', wake) == 0
-- include first_write
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
    if delay > 0 or not listed then
      redis.call('ZADD', waiting, string.format('%.0f', now + delay), id)
    else
      redis.call('LPUSH', ready, id)
    end
    redis.call('HDEL', leases, id)
    redis.call('ZREM', dead, id)
    flags[i] = 1
    moved = moved + 1
  end
end
if moved > 0 and idle and listed then redis.call('RPUSH', wake, '1') end
return remember(table.concat(flags))
