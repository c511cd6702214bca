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
-- Returns flags: 1 = done, 0 = not found, or not looked for since 16 MiB were read before.
-- O(found * older messages)

-- include last_call, remove_near
if last == sequence then return outcome end
-- check target
-- first_write list
local flags = remove_near(list, found, 5, function(_, moved)
  if moved ~= '' then redis.call('LPUSH', target, moved) end
end)
return remember(flags)
