-- Remove messages from a list from whose right end workers take meanwhile.
--
-- Needs slot, sequence. Defines NEAR: by how many places a message may have come nearer to the end, READ: most bytes
-- that are read, bytes_read: so many were read, find_near: takes a list, the place where a message was (-1 = the
-- oldest), its size, the message or its beginning, and "" or the end of a large one; returns its place now and the
-- message; nil if it is not found, remove_near: takes a list, a table with the number of older messages, size, beginning
-- and end of each, oldest first, how many values each has there, and what is called with a message that was found and
-- its fifth value; returns flags: 1 = removed, 0 = not found, and how many.
local NEAR, READ, bytes_read = 16, 16777216, 0
local function find_near(list, place, size, head, tail)
  for near = 0, math.min(NEAR, -1 - place) do
    if bytes_read >= READ then return end
    local message = redis.call('LINDEX', list, place + near)
    bytes_read = bytes_read + #(message or '')
    local same = tail == '' and message == head
    if message and tail ~= '' and #message == tonumber(size) then
      same = string.sub(message, 1, #head) == head and string.sub(message, -#tail) == tail
    end
    if same then return place + near, message end
  end
end
local function remove_near(list, found, width, removes)
  local mark, marked, shift, flags = 'redis_queue ' .. slot .. ' ' .. sequence, 0, 0, {}
  for i = 1, #found - width + 1, width do
    local older, size, head, tail, fifth = unpack(found, i, i + width - 1)
    local before = -1 - (tonumber(older) or 0) + shift
    local place, message = find_near(list, before, size, head, tail)
    if place then
      -- Mark first and remove together: the places of the others stay, and the list is read once.
      redis.call('LSET', list, place, mark)
      removes(message, fifth)
      marked, shift = marked + 1, shift + place - before
    end
    flags[#flags + 1] = place and 1 or 0
  end
  if marked > 0 then redis.call('LREM', list, -marked, mark) end
  return table.concat(flags), marked
end
