-- Put a message behind the others of its group, where it waits until the limits of its flows admit it.
--
-- A group has one list: messages with the same queue, priority, flows and keys. The groups of one task in one queue and
-- priority take turns in a ring. This script computes the names of the keys of the group from that of the first key.
--
-- KEYS config, oldest, backlog, flags, slot, owners, owner_ends, replaced, declared
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat has no effect, a lower number is refused
-- ARGV step      TEXT  step of the priority, 0 to 9
-- ARGV queue     TEXT  name of the queue
-- ARGV task      TEXT  flow of the task, "" = none
-- ARGV of_task   TEXT  its key, "" = none
-- ARGV of_queue  TEXT  key of the flow of the queue, "" = none
-- ARGV is_new    FLAG  1 = it has to own the key of its unique task, if it has one; 0 = another broker has delivered it
-- ARGV message   TEXT  in the format of kombu; that of a unique task begins as includes/unique_message.lua reads it
-- ARGV flows     LIST  flow, its limits and rates, ...: in force unless others are known
--
-- Returns 1 = sent; 2 = sent, and the caller has to declare its flows by admission/configure.lua; 0 = not sent, since
-- another message owns its key.
-- O(log groups)

-- include last_call
if last == sequence then return tonumber(outcome) end
-- include clock, flow_ready, flow_push, unique_owner, unique_confirm, unique_message
-- check backlog
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
push(message, false)
if changed[queue] then signal(queue) end
return tonumber(remember(sent))
