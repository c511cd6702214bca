-- Note that the message of an owner waits now, and that what it replaces must not run.
--
-- Needs now, replaced, owner, own, drop_all. Defines confirm: takes a field and a token and the new state and whether
-- the one message that it replaces in the store is gone; returns whether it owns its key.
local function confirm(field, token, new_state, gone)
  local found, before, state, ttl, id = owner(field)
  -- It has started before.
  if redis.call('ZREM', replaced, '=' .. token) == 1 then return true end
  if found ~= token then return false end
  if state == 's' or before ~= '-' then
    if not (gone and string.find(before, '^d%x+$')) then drop_all(before, ttl) end
    own(field, token, '-', new_state, ttl, id, now + ttl)
  end
  return true
end
