-- Return a message that is in flight to its group, and free its place, unless its record has changed or is gone.
--
-- It comes from a group, or from a list of kombu: a dispatcher or a stock worker put it there.
--
-- KEYS[1] index     ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked   HASH  delivery tag -> message, exchange and routing key as JSON
-- KEYS[3] config    HASH  flow -> its limits and rates
-- KEYS[4] running   HASH  flow, or flow and key -> number of places in use
-- KEYS[5] held      HASH  delivery tag -> the group of its message
-- KEYS[6] oldest     ZSET  group with messages -> since when it has some (ms)
-- KEYS[7] backlog   HASH  flow -> number of messages that wait
-- KEYS[8] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[9] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[10] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- KEYS[11] owned       HASH  delivery tag -> the key that its message owns: until, token, task and key
-- KEYS[12] lease_ends  ZSET  delivery tag -> when its lease ends (s)
-- ARGV[1] now       ms; 0 = the server's TIME
-- ARGV[2] tag       delivery tag
-- ARGV[3] record    as the caller read it
-- ARGV[4] last      1 = behind the others of its group, 0 = before them
-- ARGV[5] step      step of the priority, 0 to 9
-- ARGV[6] queue     name of the queue
-- ARGV[7] task      flow of the task, "" = none
-- ARGV[8] of_task   its key, "" = none
-- ARGV[9] of_queue  key of the flow of the queue, "" = none
-- ARGV[10] message  to push; that of a unique task begins as includes/unique_message.lua reads it
--
-- Returns 1 = returned, 0 = another caller returned or settled it.
-- O(log index)
local index, unacked, config, running = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local held, oldest, backlog = KEYS[5], KEYS[6], KEYS[7]
local owners, owner_ends, replaced, owned, lease_ends = KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local now, tag, record, last = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4] == '1'
local step, queue, task, of_task, of_queue, message = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]

-- include clock
-- include flow_ready
-- include flow_push
-- include flow_offer
-- include flow_free
-- include unique_owner
-- include unique_message
redis.call('ZCARD', index)
redis.call('ZCARD', lease_ends)
local group = table.concat({step, queue, task, of_task, of_queue}, '\0')
if not string.find(group, '^%d%z[^%z]+%z[^%z]*%z[^%z]*%z[^%z]*$') then return redis.error_reply('ERR invalid group') end
if redis.call('HGET', unacked, tag) ~= record then return 0 end
-- As includes/first_write.lua.
redis.call('HDEL', unacked, '')
local letter = string.match(redis.call('HGET', owned, tag) or '', '^%u')
-- As another broker delivered it.
if letter then message = string.sub(message, 1, 1) .. letter .. string.sub(message, 3) end
push(group, message, not last)
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
