-- Read a message of a unique task, as the list of its group has it.
--
-- It begins with a capital letter if another broker has delivered it, which may do so again.
-- Defines unique_of: returns nothing for another message, else until when it owns its key (s = start / e = end / t = a
-- time) and the token and the ms for which it is kept and the field and the task id and the message without these and
-- the letter with which it begins.
local function unique_of(element)
  if string.byte(element) ~= 1 then return end
  local letter, token, ttl, field_size, id_size, at = string.match(element, '^\1(%a) (%x+) (%d+) (%d+) (%d+) ()')
  if not letter then return end
  local next_at = at + field_size
  local field, id = string.sub(element, at, next_at - 1), string.sub(element, next_at, next_at + id_size - 1)
  return string.lower(letter), token, ttl, field, id, string.sub(element, next_at + id_size), letter
end
