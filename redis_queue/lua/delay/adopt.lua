-- Store messages from other keys of this Redis and remove them there, each in one atomic step.
--
-- These keys belong to a broker, so this script writes keys that it does not declare; it must not be called on Redis
-- Cluster. Without records it only removes, which works on any server.
--
-- KEYS meta, records, waiting, slot, wake
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV found     LIST  for each: id, due time in ms, key, index, place, score, element, record ("" = only remove it).
--                      Without an index, key is a list and place a position in it; otherwise key is a hash, place a
--                      field in it, and index a sorted set in which the field has this score ("" = none)
--
-- Returns {1 if the queue is new, flags}: per message 1 = done, 0 = the element is no longer at its place, 2 = an entry
-- with this id exists; with 0 and 2 nothing was done.
-- O(found * log waiting + length of the lists up to the last place)

-- include clock, schema, last_call
if last == sequence then return {0, outcome} end
-- check records
-- include wake_dispatcher, store_entry

local function stands(key, index, place, score, element)
  local kind = redis.call('TYPE', key).ok
  if index == '' then return kind == 'list' and redis.call('LINDEX', key, place) == element end
  local order = redis.call('TYPE', index).ok
  if kind ~= 'hash' or (order ~= 'zset' and order ~= 'none') then return false end
  local scored = tonumber(redis.call('ZSCORE', index, place) or '')
  return scored == tonumber(score) and redis.call('HGET', key, place) == element
end

-- Stored messages are removed elsewhere.
-- first_write records
local head, mark = 'v1 ' .. string.format('%.0f', now) .. ' ', 'redis_queue ' .. slot .. ' ' .. sequence
local flags, marked, stored, first = {}, {}, 0, math.huge
for i = 1, #found, 8 do
  local id, due, key, index, place, score, element, record = unpack(found, i, i + 7)
  local flag = 0
  if stands(key, index, place, score, element) then
    flag = record ~= '' and redis.call('HEXISTS', records, id) == 1 and 2 or 1
  end
  if flag == 1 and record ~= '' then
    local refused = store_entry(id, due, head .. record)
    if refused then return refused end
    stored, first = stored + 1, math.min(first, tonumber(due))
  end
  if flag == 1 and index == '' then
    -- Mark first and remove together: the positions of the others stay, and the list is read once.
    redis.call('LSET', key, place, mark)
    marked[key] = (marked[key] or 0) + 1
  elseif flag == 1 then
    redis.call('ZREM', index, place)
    redis.call('HDEL', key, place)
  end
  flags[#flags + 1] = flag
end
for key, count in pairs(marked) do redis.call('LREM', key, count, mark) end
flags = remember(table.concat(flags))
if stored > 0 then
  redis.call('HINCRBY', meta, 'put', stored)
  if not known then redis.call('HSET', meta, 'schema', SCHEMA) end
  wake_dispatcher(first)
end
return {known and 0 or 1, flags}
