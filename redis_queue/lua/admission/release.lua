-- End the ownership of a key: its message was not sent, or was removed, or a user wants the key to be free.
--
-- KEYS owners, owner_ends, replaced
-- ARGV now       TIME   0 = the server's clock
-- ARGV field     TEXT   task, NUL and key
-- ARGV token     TEXT   of the message; "" = whichever owns the key
-- ARGV sent      FLAG   0 = its message was not sent, or if it was, does not run; 1 = it was sent, or removed
-- ARGV owner_id  TEXT   task id that has to own it; "" = any
--
-- Returns 1 = done: the key is free, or that of the message that it was to replace; 0 = another one owns it, or none.
-- O(log owners)

-- include clock, unique_owner
-- check owner_ends, replaced
-- first_write owners
local found, before, state, ttl, id = owner(field)
if not found or (owner_id ~= '' and id ~= owner_id) or (token ~= '' and found ~= token) then return 0 end
-- It was sent after all.
if not sent and state ~= 's' then return 0 end
local state_before, token_before = string.match(before, '^(%a)(%x+)')
if not sent and state_before == 'd' then
  -- In the store, it may have taken the place of the message before it.
  own(field, found, before, 'd', ttl, id, now + ttl)
  return 1
end
if not sent then drop(found, ttl) end
if token_before and token ~= '' then
  own(field, token_before, without(before, token_before), state_before, ttl, id, now + ttl)
else
  disown(field, id)
end
return 1
