-- Free the keys of revoked tasks that wait: their messages do not run.
--
-- KEYS[1] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[2] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[3] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- ARGV[1] now         ms; 0 = the server's TIME
-- ARGV[...] ids       task ids, up to 500
--
-- A task for which others wait keeps its key until a worker discards it, which tells them.
-- Returns the ids of tasks whose keys are free.
-- O(ids * log owners)
local owners, owner_ends, replaced = KEYS[1], KEYS[2], KEYS[3]
local now = tonumber(ARGV[1])
local ids = {unpack(ARGV, 2)}

-- include clock
-- include unique_owner
redis.call('ZCARD', owner_ends)
redis.call('ZCARD', replaced)
-- As includes/first_write.lua.
redis.call('HDEL', owners, '')
local revoked = {}
for _, id in ipairs(ids) do
  local field = redis.call('HGET', by_id, id)
  local token, before, state, ttl, owner_id
  if field then token, before, state, ttl, owner_id = owner(field) end
  if token and owner_id == id and before == '-' and (state == 'w' or state == 'd') then
    drop(token, ttl)
    disown(field, id)
    revoked[#revoked + 1] = id
  end
end
return revoked
