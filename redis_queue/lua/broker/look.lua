-- Read some messages of a list of kombu's Redis transport, the oldest first.
--
-- The oldest message is at the right end. Of a large message only both ends are returned.
--
-- KEYS list
-- ARGV first  COUNT  number of older messages that are skipped
-- ARGV limit  COUNT  most messages
--
-- Stops after the message that makes 1 MiB.
-- Returns {length of the list, size in bytes, message, "" or the end of a large one, size, ...}.
-- O(limit * first)

local MAX_BYTES, MAX_ROWS, REACH, LARGE, HEAD, TAIL = 1048576, 500, 20000, 65536, 1024, 8192
local length, bytes = redis.call('LLEN', list), 0
local found = {length}
for place = first, math.min(first + math.min(limit, MAX_ROWS), length, REACH) - 1 do
  local message = redis.call('LINDEX', list, -1 - place)
  if not message or bytes >= MAX_BYTES then break end
  local size, tail = #message, ''
  bytes = bytes + size
  if size > LARGE then message, tail = string.sub(message, 1, HEAD), string.sub(message, -TAIL) end
  found[#found + 1] = size
  found[#found + 1] = message
  found[#found + 1] = tail
end
return found
