-- Remove waiting entries and dead letters, and note which tasks are revoked.
--
-- KEYS records, waiting, leases, errors, dead, revoked, discarded, slot
-- ARGV now       TIME  0 = the server's clock
-- ARGV age       MS    after which a note is removed
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV held      TEXT  entries stay whose records contain it; "" = none do, and no record is read
-- ARGV ids       LIST  each followed by remove; by cancel: if it is removed, it is noted in revoked; by revoke: it is
--                      in any case, and if not found, in discarded, too; by revoked or discarded: it is only noted
--
-- Returns for each id, one after the other, a flag, the length of the record, a colon, its due time or when it died, a
-- space and the record; if it was not read, both numbers are 0.
-- Flags: 1 = removed, it will never run; 2 = removed, but it was claimed before (even if that delivery was not
-- counted), so its work may have been done; 0 = unknown id, or in flight; 3 = stays; 4 = a dead letter that stays. The
-- record of a removed dead letter is left out.
-- Removes at most 200 old notes, and two for each new one. Stops after the record that makes 1 MiB: call again.
-- O(ids * log waiting + (ids + 200) * log revoked)

local MAX_BYTES, MAX_NOTES, PAGE = 1048576, 100000, 200
-- include last_call
if last == sequence then return outcome end
-- include clock, marks
if is_long(held) then return LONG_MARK end
-- check records, leases, errors, dead, revoked, discarded
-- first_write leases
-- include remove_entry
local rows, bytes, added = {}, 0, {[revoked] = 0, [discarded] = 0}
local function note(notes, id)
  redis.call('ZADD', notes, string.format('%.0f', now), id)
  added[notes] = added[notes] + 1
end
for i = 1, #ids, 2 do
  local id, verb, flag, record = ids[i], ids[i + 1], 0, ''
  local at, place = 0, verb ~= 'revoked' and verb ~= 'discarded' and place_of(id)
  if place and held ~= '' then record, at = redis.call('HGET', records, id) or '', redis.call('ZSCORE', place, id) end
  bytes = bytes + #record
  if place and held ~= '' and string.find(record, held, 1, true) then
    flag = place == dead and 4 or 3
  elseif place then
    flag, record = remove(id, place), place == dead and '' or record
  end
  local cancelled = verb == 'cancel' and (flag == 1 or flag == 2)
  if cancelled or verb == 'revoke' or verb == 'revoked' then note(revoked, id) end
  if verb == 'discarded' or verb == 'revoke' and flag == 0 then note(discarded, id) end
  rows[#rows + 1] = string.format('%d%d:%d ', flag, #record, at) .. record
  if bytes >= MAX_BYTES then break end
end
for notes, count in pairs(added) do
  local over, gone = redis.call('ZCARD', notes) - MAX_NOTES, {}
  local oldest = count > 0 and redis.call('ZRANGE', notes, 0, PAGE + 2 * count - 1, 'WITHSCORES') or {}
  for i = 1, #oldest, 2 do
    if #gone < over or tonumber(oldest[i + 1]) < now - age then gone[#gone + 1] = oldest[i] end
  end
  if #gone > 0 then redis.call('ZREM', notes, unpack(gone)) end
end
return remember(table.concat(rows))
