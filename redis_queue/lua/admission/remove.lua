-- Delete or move messages that wait in the list of their group, unless they have changed place by more than 16.
--
-- Moved messages keep their flows, their keys and their order, and wait in another queue, behind the others. The keys
-- of unique tasks whose messages are deleted are free. This script computes the names of the keys of rings and groups
-- from that of the first key.
--
-- KEYS config, oldest, backlog, slot, owners, owner_ends, replaced
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV source    TEXT  group to which the messages belong
-- ARGV step      TEXT  step of the priority of the group, 0 to 9
-- ARGV queue     TEXT  queue to which they are moved; that of the group = delete them
-- ARGV task      TEXT  flow of the task, as in the group
-- ARGV of_task   TEXT  its key, as in the group
-- ARGV of_queue  TEXT  key of the flow of the queue, as in the group
-- ARGV found     LIST  for each, oldest first: number of older messages, size, message or beginning, "" or the end
--                      of a large one, the message with its new route ("" to delete it)
--
-- Returns flags: 1 = done, 0 = not found, or not looked for since 16 MiB were read before.
-- O(found * older messages)

-- include last_call
if last == sequence then return outcome end
-- include clock, remove_near, unique_owner, unique_message, flow_shrink, flow_ready, flow_push
if not is_group(source) then return redis.error_reply('ERR invalid group') end
local moves = group ~= source
local list = root .. 'list:' .. source
local flags, removed = remove_near(list, found, 5, function(message, moved)
  if moves and moved ~= '' then
    push(moved, false)
    return
  end
  local until_, token, _, field = unique_of(message)
  if until_ then give_up(field, token) end
end)
shrunk(source, removed)
for changed_queue in pairs(changed) do signal(changed_queue) end
return remember(flags)
