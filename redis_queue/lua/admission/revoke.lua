-- Free the keys of revoked tasks that wait: their messages do not run.
--
-- KEYS owners, owner_ends, replaced
-- ARGV now  TIME  0 = the server's clock
-- ARGV ids  LIST  task ids, up to 500
--
-- A task for which others wait keeps its key until a worker discards it, which tells them.
-- Returns the ids of tasks whose keys are free.
-- O(ids * log owners)

-- include clock, unique_owner
-- check owner_ends, replaced
-- first_write owners
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
