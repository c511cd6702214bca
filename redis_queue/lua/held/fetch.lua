-- Fetch messages from lists of kombu's Redis transport and record them as in flight, in one step.
--
-- kombu pops first and records later: a worker killed in between loses the message. Each record contains its queue, so
-- the message goes back there, and has its own tag, so no other worker can settle it.
--
-- KEYS[1] index      ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked    HASH  delivery tag -> message, exchange and routing key as JSON
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] limit      most messages
-- ARGV[3] tag        first part of the tags, followed by a number
-- ARGV[...] lists    list, JSON of exchange and routing key, ...; in order of priority
--
-- Stops after the message that makes 1 MiB, and reads none after it, so that no call blocks Redis for long.
-- Returns {the time, number of the list, message, number of the list, message, ...}; tags are counted from 1.
-- O(lists + messages * log index)
local index, unacked = KEYS[1], KEYS[2]
local now, limit, tag = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local lists = {unpack(ARGV, 4)}
local MAX_BYTES = 1048576

-- include clock
redis.call('ZCARD', index)
redis.call('HLEN', unacked)
local text = string.format('%.3f', now / 1000)
local reply, count, bytes = {text}, 0, 0
for i = 1, #lists, 2 do
  local list = lists[i]
  local taken = 0
  while count < limit and bytes < MAX_BYTES do
    local message = redis.call('LINDEX', list, -1 - taken)
    if not message then break end
    taken, count, bytes = taken + 1, count + 1, bytes + #message
    local name = tag .. string.format('%.0f', count)
    redis.call('HSET', unacked, name, '[' .. message .. ', ' .. lists[i + 1] .. ']')
    redis.call('ZADD', index, text, name)
    reply[#reply + 1] = (i + 1) / 2
    reply[#reply + 1] = message
  end
  if taken > 0 then redis.call('RPOP', list, taken) end
end
return reply
