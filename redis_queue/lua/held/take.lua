-- Remove messages from a list of kombu's Redis transport, or move them to another list, unless they have changed place.
--
-- Workers take messages from the right end meanwhile, so a message may be up to 16 places nearer to it than given. A
-- message that was taken, and one whose bytes differ, stays as it is. Moved messages keep their order.
--
-- KEYS list, target, slot
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV found     LIST  for each, oldest first: number of older messages, size, message or its beginning, "" or the end
--                      of a large one, the message to push ("" = only remove)
--
-- Returns flags: 1 = done, 0 = not found.
-- O(found * older messages)

-- include find_near, last_call
if last == sequence then return outcome end
redis.call('LLEN', target)
-- As includes/first_write.lua: removes nothing.
redis.call('LTRIM', list, 0, -1)
local mark, marked, shift, flags = 'redis_queue ' .. slot .. ' ' .. sequence, 0, 0, {}
for i = 1, #found, 5 do
  local older, size, head, tail, moved = unpack(found, i, i + 4)
  local before = -1 - tonumber(older) + shift
  local place = find_near(list, before, size, head, tail)
  if place then
    -- Mark first and remove together: the places of the others stay, and the list is read once.
    redis.call('LSET', list, place, mark)
    if moved ~= '' then redis.call('LPUSH', target, moved) end
    marked, shift = marked + 1, shift + place - before
  end
  flags[#flags + 1] = place and 1 or 0
end
if marked > 0 then redis.call('LREM', list, -marked, mark) end
return remember(table.concat(flags))
