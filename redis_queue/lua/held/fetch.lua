-- Take messages out of lists of kombu's Redis transport and record them as in flight, in one step.
--
-- kombu pops first and records then: who is killed in between loses the message. Each record names the queue itself, so
-- it goes back to where it was, under a tag of its own, so nobody else can settle it.
--
-- KEYS[1] index      ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked    HASH  delivery tag -> message, exchange and routing key as JSON
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] limit      most messages
-- ARGV[3] tag        beginning of the tags; a number follows
-- ARGV[...] lists    list, JSON of exchange and routing key, ...; first come, first served
--
-- Stops after the message that makes 1 MiB, and reads none after it: one call never blocks Redis for long.
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
