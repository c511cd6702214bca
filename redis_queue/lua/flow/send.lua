-- Put a message behind the others of its group, where it waits until the limits of its flows admit it.
--
-- A group has one list: messages with the same queue, priority, flows and keys. The groups of one task in one queue and
-- priority take turns in a ring. This script computes the names of the keys of the group from that of the first key.
--
-- KEYS[1] config    HASH    flow -> its limits and rates
-- KEYS[2] oldest     ZSET    group with messages -> since when it has some (ms)
-- KEYS[3] backlog   HASH    flow -> number of messages that wait
-- KEYS[4] flags     HASH    "" once there are flows, and all that is paused: flows of tasks, and queues as JSON
-- KEYS[5] slot      STRING  number and outcome of this caller's last call
-- KEYS[6] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[7] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[8] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- KEYS[9] declared  HASH    flow -> its limits and rates as in the code
-- ARGV[1] now       ms; 0 = the server's TIME
-- ARGV[2] sequence  number of the call, grows per caller; a repeat has no effect, a lower number is refused
-- ARGV[3] step      step of the priority, 0 to 9
-- ARGV[4] queue     name of the queue
-- ARGV[5] task      flow of the task, "" = none
-- ARGV[6] of_task   its key, "" = none
-- ARGV[7] of_queue  key of the flow of the queue, "" = none
-- ARGV[8] is_new    1 = it has to own the key of its unique task, if it has one; 0 = another broker has delivered it
-- ARGV[9] message   in the format of kombu; that of a unique task begins as includes/unique_message.lua reads it
-- ARGV[...] flows   flow, its limits and rates, ...: in force unless others are known
--
-- Returns 1 = sent; 2 = sent, and the caller has to declare its flows by flow/configure.lua; 0 = not sent, since
-- another message owns its key.
-- O(log groups)
local config, oldest, backlog, flags, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owners, owner_ends, replaced, declared = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local now, sequence, step, queue = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local task, of_task, of_queue, is_new, message = ARGV[5], ARGV[6], ARGV[7], ARGV[8] == '1', ARGV[9]
local flows = {unpack(ARGV, 10)}

-- include last_call
if last == sequence then return tonumber(outcome) end
-- include clock
-- include flow_ready
-- include flow_push
-- include unique_owner
-- include unique_confirm
-- include unique_message
local group = table.concat({step, queue, task, of_task, of_queue}, '\0')
if not string.find(group, '^%d%z[^%z]+%z[^%z]*%z[^%z]*%z[^%z]*$') then return redis.error_reply('ERR invalid group') end
redis.call('HLEN', backlog)
local until_, token, _, field = unique_of(message)
if until_ and is_new and not confirm(field, token, 'w', false) then
  redis.call('ZREM', replaced, token)
  return tonumber(remember('0'))
end
local sent = '1'
for i = 1, #flows - 1, 2 do
  if redis.call('HEXISTS', declared, flows[i]) == 0 then
    sent = '2'
    redis.call('HSETNX', config, flows[i], flows[i + 1])
  end
end
redis.call('HSET', flags, '', 1)
push(group, message, false)
if changed[queue] then signal(queue) end
return tonumber(remember(sent))
