-- Find a message in a list from whose right end workers take meanwhile.
--
-- Defines NEAR: by how many places it may have come nearer to the end, find_near: takes a list, the place where the
-- message was (-1 = the oldest), its size, the message or its beginning, and "" or the end of a large one; returns its
-- place now and the message; nil if it is not found.
local NEAR = 16
local function find_near(list, place, size, head, tail)
  for near = 0, math.min(NEAR, -1 - place) do
    local message = redis.call('LINDEX', list, place + near)
    local same = tail == '' and message == head
    if message and tail ~= '' and #message == tonumber(size) then
      same = string.sub(message, 1, #head) == head and string.sub(message, -#tail) == tail
    end
    if same then return place + near, message end
  end
end
