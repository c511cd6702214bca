-- Return a message that is in flight to its group, and free its place, unless its record has changed or is gone.
--
-- It comes from a group, or from a list of kombu: a dispatcher or a stock worker put it there.
--
-- KEYS index, unacked, config, running, held, oldest, backlog, owners, owner_ends, replaced, owned, lease_ends
-- ARGV now       TIME  0 = the server's clock
-- ARGV tag       TEXT  delivery tag
-- ARGV record    TEXT  as the caller read it
-- ARGV ended     FLAG  1 = only if its lease has ended; the holder may have renewed it since it was found
-- ARGV last      FLAG  1 = behind the others of its group, 0 = before them
-- ARGV step      TEXT  step of the priority, 0 to 9
-- ARGV queue     TEXT  name of the queue
-- ARGV task      TEXT  flow of the task, "" = none
-- ARGV of_task   TEXT  its key, "" = none
-- ARGV of_queue  TEXT  key of the flow of the queue, "" = none
-- ARGV message   TEXT  to push; that of a unique task begins as includes/unique_message.lua reads it
--
-- Returns 1 = returned, 0 = another caller returned or settled it, or its lease goes on.
-- O(log index)

-- include clock, flow_ready, flow_push, flow_offer, flow_free, unique_owner, unique_message, returnable
-- first_write unacked
local letter = string.match(redis.call('HGET', owned, tag) or '', '^%u')
-- As another broker delivered it.
if letter then message = string.sub(message, 1, 1) .. letter .. string.sub(message, 3) end
push(message, not last)
redis.call('ZREM', index, tag)
redis.call('HDEL', unacked, tag)
redis.call('ZREM', lease_ends, tag)
free({tag})
redis.call('HDEL', owned, tag)
local until_, token, ttl, field, id = unique_of(message)
if until_ and until_ ~= 't' then
  -- It waits again. Meanwhile another message may own its key.
  local found, before, state = owner(field)
  local is_owner = not found or (found == token and before == '-' and state ~= 's')
  if redis.call('ZSCORE', replaced, token) then is_owner = false end
  if is_owner then own(field, token, '-', 'w', ttl, id, now + ttl) end
end
for changed_queue in pairs(changed) do signal(changed_queue) end
return 1
