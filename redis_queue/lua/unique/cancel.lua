-- Remove waiting entries and dead letters, and free the keys of unique tasks in them.
--
-- KEYS[1] records    HASH  id -> record
-- KEYS[2] waiting    ZSET  id -> due time (ms)
-- KEYS[3] leases     HASH  id -> deliveries
-- KEYS[4] errors     HASH  id -> last reason
-- KEYS[5] dead       ZSET  id -> time it died (ms)
-- KEYS[6] slot       STRING number and outcome of this caller's last call
-- KEYS[7] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[8] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[9] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[3] latest     ms: only dead letters that died by then; 0 = waiting entries, and dead letters of any age
-- ARGV[...] entries  id, a text in its record ("" = any record), field and token, ...: task, NUL and key of a unique
--                    task, and the token of its message; "" and "" for another one
--
-- The store is no Cluster: the keys have two hash tags. A cancelled message that may have been sent does not run.
-- Returns flags: those of delay/cancel.
-- Stops after the record that makes 1 MiB, of those with a mark: call again for the other ids.
-- O(entries * log owners)
local records, waiting, leases, errors, dead, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owners, owner_ends, replaced = KEYS[7], KEYS[8], KEYS[9]
local now, sequence, latest = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local entries = {unpack(ARGV, 4)}
local MAX_BYTES = 1048576

-- include last_call
if last == sequence then return outcome end
-- include marks
for i = 2, #entries, 4 do
  if is_long(entries[i]) then return LONG_MARK end
end
-- include clock
-- include unique_owner
redis.call('HLEN', records)
redis.call('HLEN', leases)
redis.call('HLEN', errors)
redis.call('ZCARD', dead)
redis.call('HLEN', owners)
redis.call('HLEN', by_id)
redis.call('ZCARD', owner_ends)
redis.call('ZCARD', replaced)
-- include first_write
-- include remove_entry
local function free(field, token, maybe_sent)
  local found, before, _, ttl, owner_id = owner(field)
  if maybe_sent then drop(token, ttl or 0) end
  if found ~= token then
    give_up(field, token)
    return
  end
  -- The messages that it was to replace have its task id: they do not run either, unless they do already.
  local runs = string.match(before, 'r(%x+)')
  for other in string.gmatch(before, '[dw](%x+)') do drop(other, ttl) end
  if runs then own(field, runs, '-', 'r', ttl, owner_id, now + ttl) else disown(field, owner_id) end
end
local flags, bytes = {}, 0
for i = 1, #entries, 4 do
  local id, mark, field, token = unpack(entries, i, i + 3)
  local died = latest > 0 and tonumber(redis.call('ZSCORE', dead, id) or '')
  local flag, size = 0, 0
  if latest == 0 or (died and died <= latest) then flag, size = remove(id, mark, latest > 0) end
  if field ~= '' and (flag == 1 or flag == 2) then free(field, token, flag == 2 and latest == 0) end
  flags[#flags + 1], bytes = flag, bytes + size
  if bytes >= MAX_BYTES then break end
end
return remember(table.concat(flags))
