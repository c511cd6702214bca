-- Remove waiting entries and dead letters.
--
-- KEYS[1] records    HASH  id -> record
-- KEYS[2] waiting    ZSET  id -> due time (ms)
-- KEYS[3] leases     HASH  id -> deliveries
-- KEYS[4] errors     HASH  id -> last reason
-- KEYS[5] dead       ZSET  id -> time it died (ms)
-- KEYS[6] slot       STRING number and outcome of this caller's last call
-- ARGV[1] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[...] ids      to cancel, each followed by a mark: a text in its record ("" = any record)
--
-- Returns flags: 1 = cancelled, it will never run; 2 = removed, but it was claimed before (even if that delivery was
-- not counted), so its work may have been done; 0 = unknown id, or in flight; 3 = its record lacks the mark: it stays.
-- Stops after the record that makes 1 MiB, of those with a mark: call again for the other ids.
-- O(ids * log waiting)
local records, waiting, leases, errors, dead, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local sequence = ARGV[1]
local ids = {unpack(ARGV, 2)}
local MAX_BYTES = 1048576

-- include last_call
if last == sequence then return outcome end
-- include marks
for i = 2, #ids, 2 do
  if is_long(ids[i]) then return LONG_MARK end
end
redis.call('HLEN', records)
redis.call('HLEN', leases)
redis.call('HLEN', errors)
redis.call('ZCARD', dead)
-- include first_write
-- include remove_entry
local flags, bytes = {}, 0
for i = 1, #ids, 2 do
  local flag, size = remove(ids[i], ids[i + 1], false)
  flags[#flags + 1], bytes = flag, bytes + size
  if bytes >= MAX_BYTES then break end
end
return remember(table.concat(flags))
