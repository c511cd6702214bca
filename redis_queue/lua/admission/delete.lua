-- Delete messages that wait in the list of their group, unless they have changed place by more than 16.
--
-- The keys of unique tasks whose messages are deleted are free. This script computes the names of the keys of the group
-- from that of the first key.
--
-- KEYS config, oldest, backlog, slot, owners, owner_ends, replaced
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV group     TEXT  to which the messages belong
-- ARGV found     LIST  for each, oldest first: number of older messages, size, message or beginning, "" or end if large
--
-- Returns flags: 1 = deleted, 0 = not found.
-- O(found * older messages)

-- include last_call
if last == sequence then return outcome end
-- include clock, remove_near, unique_owner, unique_message, flow_shrink
if not is_group(group) then return redis.error_reply('ERR invalid group') end
local list = root .. 'list:' .. group
local flags, removed = remove_near(list, found, 4, function(message)
  local until_, token, _, field = unique_of(message)
  if until_ then give_up(field, token) end
end)
shrunk(group, removed)
return remember(flags)
