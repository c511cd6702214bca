-- Add messages, all or none.
--
-- KEYS meta, records, ready, waiting, wake, slot
-- ARGV now         TIME   0 = the server's clock
-- ARGV max_length  COUNT  most ready and delayed messages; 0 = no limit
-- ARGV sequence    TEXT   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV messages    LIST   id, delay in ms, record without version and time; three for each message
--
-- Returns {1 if the queue is new, flags}: for each message 1 = stored, 0 = a message with this id exists.
-- Flags "full": the queue would hold more than max_length ready and delayed messages; nothing was stored.
-- O(messages * log waiting)

-- include clock, schema, last_call
if last == sequence then return {0, outcome} end
local length = redis.call('LLEN', ready) + redis.call('ZCARD', waiting)
local idle = redis.call('LLEN', wake) == 0

local ids = {}
for i = 1, #messages, 3 do ids[#ids + 1] = messages[i] end
local head = 'v1 ' .. string.format('%.0f', now) .. ' '
local flags, fields, pushed, delayed, seen = {}, {}, {}, {}, {}
for i, id in ipairs(ids) do
  local delay, record = tonumber(messages[3 * i - 1]), messages[3 * i]
  if seen[id] or redis.call('HEXISTS', records, id) == 1 then
    flags[i] = 0
  else
    flags[i] = 1
    seen[id] = true
    fields[#fields + 1], fields[#fields + 2] = id, head .. record
    if delay > 0 then
      delayed[#delayed + 1], delayed[#delayed + 2] = string.format('%.0f', now + delay), id
    else
      pushed[#pushed + 1] = id
    end
  end
end
flags = table.concat(flags)
local added = #fields / 2
if added == 0 then return {0, remember(flags)} end
if max_length > 0 and length + added > max_length then return {0, remember('full')} end

redis.call('HSET', records, unpack(fields))
local stored_at = #delayed > 0 and redis.pcall('ZADD', waiting, unpack(delayed)) or 0
if type(stored_at) == 'number' and #pushed > 0 then stored_at = redis.pcall('LPUSH', ready, unpack(pushed)) end
if type(stored_at) ~= 'number' then
  -- A permission is missing. Remove the records: a repeated call would report their messages as stored.
  for i = 1, #fields, 2 do redis.call('HDEL', records, fields[i]) end
  for i = 2, #delayed, 2 do redis.call('ZREM', waiting, delayed[i]) end
  return stored_at
end
if idle then redis.call('RPUSH', wake, '1') end
redis.call('HINCRBY', meta, 'put', added)
if not known then redis.call('HSET', meta, 'schema', SCHEMA) end
return {known and 0 or 1, remember(flags)}
