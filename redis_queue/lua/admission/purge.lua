-- Delete messages that wait in the lists of their groups, or move them: all of the first group, then of the second.
--
-- A message that must not run is deleted in any case. What is in flight keeps its place until it is settled. Keys of
-- unique tasks whose messages are deleted or moved are free.
-- No worker is told, since nothing gets ready. This script computes the names of the keys of rings and groups from that
-- of the first key. The lists to which it moves may be those of kombu, and are not declared.
--
-- KEYS config, oldest, backlog, slot, owners, owner_ends, replaced
-- ARGV now       TIME   0 = the server's clock
-- ARGV sequence  TEXT   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV limit     COUNT  most messages
-- ARGV groups    LIST   of each: group, list to push to ("" = delete), JSON of its route to record ("" = none)
--
-- Stops after 50 groups, after 250 messages, and after the message that makes 512 KiB.
-- Returns "<number of messages> <number of groups that are done> <number of messages that were moved>".
-- O((groups + messages) * log groups)

local MAX_BYTES, MAX_MESSAGES, MAX_GROUPS = 524288, 250, 50
-- include last_call
if last == sequence then return outcome end
-- include clock, unique_owner, unique_message, flow_shrink
local count, bytes, done, moved = 0, 0, 0, 0
limit = math.min(limit, MAX_MESSAGES)
local function drop_next(list, target, route)
  local element = redis.call('LINDEX', list, -1)
  if not element then return false end
  count, bytes = count + 1, bytes + #element
  local until_, token, _, field, _, message, letter = unique_of(element)
  local dropped = until_ and is_dropped(token, letter)
  message = until_ and message or element
  if route ~= '' then message = '[' .. message .. ', ' .. route .. ']' end
  if target ~= '' and not dropped then
    redis.call('LPUSH', target, message)
    moved = moved + 1
  end
  redis.call('RPOP', list)
  if until_ then give_up(field, token) end
  return true
end
local function purge(group, target, route)
  if not is_group(group) then return true end
  local list, before = root .. 'list:' .. group, count
  while count < limit and bytes < MAX_BYTES and drop_next(list, target, route) do end
  return shrunk(group, count - before)
end
for i = 1, #groups - 2, 3 do
  if done >= MAX_GROUPS or not purge(unpack(groups, i, i + 2)) then break end
  done = done + 1
end
return remember(string.format('%.0f %.0f %.0f', count, done, moved))
