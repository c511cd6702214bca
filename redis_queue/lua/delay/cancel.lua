-- Remove waiting entries and dead letters.
--
-- KEYS records, waiting, leases, errors, dead, slot
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV ids       LIST  to cancel, each followed by a mark: a text in its record ("" = any record)
--
-- Returns flags: 1 = cancelled, it will never run; 2 = removed, but it was claimed before (even if that delivery was
-- not counted), so its work may have been done; 0 = unknown id, or in flight; 3 = its record lacks the mark: it stays.
-- Stops after the record that makes 1 MiB, of those with a mark: call again for the other ids.
-- O(ids * log waiting)

local MAX_BYTES = 1048576
-- include last_call
if last == sequence then return outcome end
-- include marks
for i = 2, #ids, 2 do
  if is_long(ids[i]) then return LONG_MARK end
end
-- check records, leases, errors, dead
-- first_write leases
-- include remove_entry
local flags, bytes = {}, 0
for i = 1, #ids, 2 do
  local flag, size = remove(ids[i], ids[i + 1], false)
  flags[#flags + 1], bytes = flag, bytes + size
  if bytes >= MAX_BYTES then break end
end
return remember(table.concat(flags))
