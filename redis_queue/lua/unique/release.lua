-- End the ownership of a key: its message was not sent, or was removed, or a user wants the key to be free.
--
-- KEYS[1] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[2] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[3] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- ARGV[1] now         ms; 0 = the server's TIME
-- ARGV[2] field       task, NUL and key
-- ARGV[3] token       of the message; "" = whichever owns the key
-- ARGV[4] sent        0 = its message was not sent: should it have been, it does not run; 1 = it was sent, or removed
-- ARGV[5] owner_id    task id that has to own it; "" = any
--
-- Returns 1 = done: the key is free, or that of the message that it was to replace; 0 = another one owns it, or none.
-- O(log owners)
local owners, owner_ends, replaced = KEYS[1], KEYS[2], KEYS[3]
local now, field, token, sent, owner_id = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

-- include clock
-- include unique_owner
redis.call('ZCARD', owner_ends)
redis.call('ZCARD', replaced)
-- As includes/first_write.lua.
redis.call('HDEL', owners, '')
local found, before, state, ttl, id = owner(field)
if not found or (owner_id ~= '' and id ~= owner_id) or (token ~= '' and found ~= token) then return 0 end
-- It was sent after all.
if sent == 0 and state ~= 's' then return 0 end
local state_before, token_before = string.match(before, '^(%a)(%x+)')
if sent == 0 and state_before == 'd' then
  -- In the store, it may have taken the place of the message before it.
  own(field, found, before, 'd', ttl, id, now + ttl)
  return 1
end
if sent == 0 then drop(found, ttl) end
if token_before and token ~= '' then
  own(field, token_before, without(before, token_before), state_before, ttl, id, now + ttl)
else
  disown(field, id)
end
return 1
