-- Remove waiting entries and dead letters, and free the keys of unique tasks in them.
--
-- KEYS records, waiting, leases, errors, dead, slot, owners, owner_ends, replaced
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV latest    TIME  only dead letters that died by then; 0 = waiting entries, and dead letters of any age
-- ARGV entries   LIST  id, a text in its record ("" = any record), field and token, ...: task, NUL and key of a unique
--                      task, and the token of its message; "" and "" for another one
--
-- The store is no Cluster: the keys have two hash tags. A cancelled message that may have been sent does not run.
-- Returns flags: 0 to 2 as delay/cancel, and 0 = removed, but it would not have run: another message of its task may;
-- 3 = its record lacks the mark: it stays.
-- Stops after the record that makes 1 MiB, of those with a mark: call again for the other ids.
-- O(entries * log owners)

local MAX_BYTES = 1048576
-- include last_call
if last == sequence then return outcome end
-- include marks
for i = 2, #entries, 4 do
  if is_long(entries[i]) then return LONG_MARK end
end
-- include clock, unique_owner
-- check records, leases, errors, dead, owners
redis.call('HLEN', by_id)
-- check owner_ends, replaced
-- first_write leases
-- include remove_entry
local function free(field, token, maybe_sent)
  local is_marked = redis.call('ZSCORE', replaced, token)
  local found, before, _, ttl, id = owner(field)
  if maybe_sent then drop(token, ttl or 0) end
  local has_part = found == token or without(before or '-', token)
  if not has_part then return latest > 0 or not is_marked end
  -- Those that it was to replace, or that were to replace it and were not confirmed, have its task id: they do not run
  -- either, unless they do already.
  for other in string.gmatch('+' .. before, '%+[dw](%x+)') do
    drop(other, ttl)
    give_up(field, other)
  end
  local runs = found == token and string.match(before, 'r(%x+)')
  if runs then own(field, runs, '-', 'r', ttl, id, now + ttl) elseif found == token then disown(field, id) end
  return true
end
local flags, bytes = {}, 0
for i = 1, #entries, 4 do
  local id, mark, field, token = unpack(entries, i, i + 3)
  local died, place, flag = latest > 0 and tonumber(redis.call('ZSCORE', dead, id) or ''), dead, 0
  if latest == 0 then place = place_of(id) elseif not (died and died <= latest) then place = false end
  local record = place and mark ~= '' and (redis.call('HGET', records, id) or '')
  if record and not string.find(record, mark, 1, true) then flag = 3 elseif place then flag = remove(id, place) end
  if (flag == 1 or flag == 2) and field ~= '' and not free(field, token, flag == 2 and latest == 0) then flag = 0 end
  flags[#flags + 1], bytes = flag, bytes + #(record or '')
  if bytes >= MAX_BYTES then break end
end
return remember(table.concat(flags))
