-- Take entries out before they are claimed; dead letters may be cancelled too.
--
-- KEYS[1] records    HASH  id -> record
-- KEYS[2] waiting    ZSET  id -> due time (ms)
-- KEYS[3] leases     HASH  id -> deliveries
-- KEYS[4] errors     HASH  id -> last reason
-- KEYS[5] dead       ZSET  id -> time it died (ms)
-- KEYS[6] slot       STRING last outcome of this caller
-- ARGV[1] nonce      new for every call; the same again answers with the same flags
-- ARGV[2] attempt    above 1 = the reply to this nonce may have been lost
-- ARGV[...] ids      to cancel
--
-- Returns flags: 1 = cancelled, it will never run; 0 = unknown id, or claimed already.
-- O(ids * log waiting)
local records, waiting, leases, errors, dead, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local nonce, attempt = ARGV[1], tonumber(ARGV[2])
local ids = {unpack(ARGV, 3)}

local last = attempt > 1 and redis.call('GET', slot)
if last and string.sub(last, 1, #nonce) == nonce then return string.sub(last, #nonce + 2) end
redis.call('HLEN', records)
redis.call('HLEN', leases)
redis.call('HLEN', errors)
redis.call('ZCARD', dead)
local flags, any = {}, false
for i, id in ipairs(ids) do
  flags[i] = 0
  local place = redis.call('ZSCORE', waiting, id) and waiting or redis.call('ZSCORE', dead, id) and dead
  if place then
    redis.call('HDEL', records, id)
    redis.call('HDEL', leases, id)
    redis.call('HDEL', errors, id)
    redis.call('ZREM', place, id)
    flags[i] = 1
    any = true
  end
end
flags = table.concat(flags)
if any then redis.call('SET', slot, nonce .. ' ' .. flags, 'PX', 60000) end
return flags
