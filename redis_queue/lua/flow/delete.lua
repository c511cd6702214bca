-- Delete messages that wait in the list of their group, unless they have changed place by more than 16.
--
-- The keys of unique tasks whose messages are deleted are free. This script computes the names of the keys of the group
-- from that of the first key.
--
-- KEYS config, oldest, backlog, slot, owners, owner_ends, replaced
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV group     TEXT  to which the messages belong
-- ARGV found     LIST  for each, oldest first: number of older messages, size, message or its beginning, "" or the end
--                      of a large one
--
-- Returns flags: 1 = deleted, 0 = not found.
-- O(found * older messages)

-- include last_call
if last == sequence then return outcome end
-- include clock, find_near, unique_owner, unique_message, flow_shrink
if not is_group(group) then return redis.error_reply('ERR invalid group') end
local list, mark, marked, shift, flags = root .. 'list:' .. group, 'redis_queue ' .. slot .. ' ' .. sequence, 0, 0, {}
for i = 1, #found - 3, 4 do
  local older, size, head, tail = unpack(found, i, i + 3)
  local before = -1 - (tonumber(older) or 0) + shift
  local place, element = find_near(list, before, size, head, tail)
  if place then
    redis.call('LSET', list, place, mark)
    local until_, token, _, field = unique_of(element)
    if until_ then give_up(field, token) end
    marked, shift = marked + 1, shift + place - before
  end
  flags[#flags + 1] = place and 1 or 0
end
if marked > 0 then redis.call('LREM', list, -marked, mark) end
shrunk(group, marked)
return remember(table.concat(flags))
