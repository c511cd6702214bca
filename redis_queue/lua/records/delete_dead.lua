-- Delete some dead letters.
--
-- KEYS dead, records, leases, errors, slot
-- ARGV latest    TIME  letters that died later are kept; 0 = delete at any age
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV ids       LIST  of dead letters; others are skipped
--
-- Returns flags: 1 = deleted, 0 = was not dead, or died later.
-- O(ids * log dead)

-- include last_call
if last == sequence then return outcome end
-- check records, leases, errors
-- first_write leases
local flags = {}
for i, id in ipairs(ids) do
  flags[i] = 0
  local died = redis.call('ZSCORE', dead, id)
  if died and (latest == 0 or tonumber(died) <= latest) then
    redis.call('HDEL', records, id)
    redis.call('HDEL', leases, id)
    redis.call('HDEL', errors, id)
    redis.call('ZREM', dead, id)
    flags[i] = 1
  end
end
return remember(table.concat(flags))
