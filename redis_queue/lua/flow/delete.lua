-- Delete messages that wait in the list of their group, unless they have changed place by more than 16.
--
-- The keys of unique tasks whose messages are deleted are free. This script computes the names of the keys of the group
-- from that of the first key.
--
-- KEYS[1] config     HASH    flow -> its limits and rates
-- KEYS[2] oldest     ZSET    group with messages -> since when it has some (ms)
-- KEYS[3] backlog    HASH    flow -> number of messages that wait
-- KEYS[4] slot       STRING  number and outcome of this caller's last call
-- KEYS[5] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[6] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[7] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- ARGV[1] now       ms; 0 = the server's TIME
-- ARGV[2] sequence  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[3] group     to which the messages belong
-- ARGV[...] found   for each, oldest first: number of older messages, size, message or its beginning, "" or the end of
--                   a large one
--
-- Returns flags: 1 = deleted, 0 = not found.
-- O(found * older messages)
local config, oldest, backlog, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owners, owner_ends, replaced = KEYS[5], KEYS[6], KEYS[7]
local now, sequence, group = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local found = {unpack(ARGV, 4)}

-- include last_call
if last == sequence then return outcome end
-- include clock
-- include find_near
-- include unique_owner
-- include unique_message
-- include flow_shrink
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
