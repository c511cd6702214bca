-- Delete messages that wait in the lists of their groups, or move them: all of the first group, then of the second.
--
-- A message that must not run is deleted in any case. What is in flight keeps its place until it is settled. Keys of
-- unique tasks whose messages are deleted or moved are free.
-- No worker is told, since nothing gets ready. This script computes the names of the keys of rings and groups from that
-- of the first key. The lists to which it moves may be those of kombu, and are not declared.
--
-- KEYS[1] config     HASH    flow -> its limits and rates
-- KEYS[2] oldest     ZSET    group with messages -> since when it has some (ms)
-- KEYS[3] backlog    HASH    flow -> number of messages that wait
-- KEYS[4] slot       STRING  number and outcome of this caller's last call
-- KEYS[5] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[6] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[7] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- ARGV[1] now       ms; 0 = the server's TIME
-- ARGV[2] sequence  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[3] limit     most messages
-- ARGV[...] groups  group, list to push to ("" = delete), JSON of exchange and routing key to record with messages
--                   ("" = push them alone), ...
--
-- Stops after 50 groups, after 250 messages, and after the message that makes 512 KiB.
-- Returns "<number of messages> <number of groups that are done> <number of messages that were moved>".
-- O((groups + messages) * log groups)
local config, oldest, backlog, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owners, owner_ends, replaced = KEYS[5], KEYS[6], KEYS[7]
local now, sequence, limit = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local groups = {unpack(ARGV, 4)}
local MAX_BYTES, MOST, MOST_GROUPS = 524288, 250, 50

-- include last_call
if last == sequence then return outcome end
-- include clock
-- include unique_owner
-- include unique_message
-- include flow_shrink
local count, bytes, done, moved = 0, 0, 0, 0
limit = math.min(limit, MOST)
local function drop_next(list, target, route)
  local element = redis.call('LINDEX', list, -1)
  if not element then return false end
  count, bytes = count + 1, bytes + #element
  local until_, token, _, field, _, message, letter = unique_of(element)
  local dropped = until_ and is_dropped(token, letter)
  message = until_ and message or element
  if route ~= '' then message = '[' .. message .. ', ' .. route .. ']' end
  if target ~= '' and not dropped then
    redis.call('LPUSH', target, message)
    moved = moved + 1
  end
  redis.call('RPOP', list)
  if until_ then give_up(field, token) end
  return true
end
local function purge(group, target, route)
  if not is_group(group) then return true end
  local list, before = root .. 'list:' .. group, count
  while count < limit and bytes < MAX_BYTES and drop_next(list, target, route) do end
  return shrunk(group, count - before)
end
for i = 1, #groups - 2, 3 do
  if done >= MOST_GROUPS or not purge(unpack(groups, i, i + 2)) then break end
  done = done + 1
end
return remember(string.format('%.0f %.0f %.0f', count, done, moved))
