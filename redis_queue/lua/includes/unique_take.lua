-- Note that messages of unique tasks start, and drop those that must not run.
--
-- Needs now, replaced, owner_ends, owner, own, disown, drop, drop_all, is_dropped, without, unique_of. Defines start:
-- takes an element; returns false if it must not run, else the message and what its tag owns.
local function start(element)
  local until_, token, ttl, field, id, message, letter = unique_of(element)
  if not until_ then return element end
  local found, before, state, _, owner_id = owner(field)
  if is_dropped(token, letter) then
    if found == token then disown(field, owner_id) end
    return false
  end
  local rest = found and without(before, token)
  if rest then
    -- What was to replace it is not confirmed.
    drop(found, ttl)
    drop_all(rest, ttl)
  elseif found == token then
    drop_all(before, ttl)
    -- Its sender may still confirm it: see includes/unique_confirm.lua.
    if state == 's' then redis.call('ZADD', replaced, string.format('%.0f', now + 60000), '=' .. token) end
  end
  local owns = rest or found == token
  if until_ == 's' then
    if owns then disown(field, owner_id) end
  elseif owns or (not found and until_ == 'e') then
    local ends = redis.call('ZSCORE', owner_ends, field)
    -- While a message is sent, its end is that of the sending.
    if until_ == 'e' or state == 's' then ends = now + ttl end
    own(field, token, '-', 'r', ttl, id, ends)
  end
  return message, table.concat({letter, token, field}, ' ')
end
