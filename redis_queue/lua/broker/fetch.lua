-- Fetch messages from lists of kombu's Redis transport and record them as in flight, in one step.
--
-- kombu pops first and records later: a worker killed in between loses the message. Each record contains its queue, so
-- the message goes back there, and has its own tag, so no other worker can settle it.
--
-- A worker that finds nothing joins the line of idle workers. One worker of a line, the listener, is notified by Redis
-- when a list changes; it fetches, and wakes the worker that has waited longest, which listens next. So a message wakes
-- two workers, however many are idle. While workers are idle, a worker takes no more than its share.
--
-- KEYS index, unacked, line, listener, flags, lease_ends
-- ARGV now      TIME   0 = the server's clock
-- ARGV limit    COUNT  most messages
-- ARGV tag      TEXT   first part of the tags, followed by a number
-- ARGV channel  TEXT   on which the caller is woken
-- ARGV missed   FLAG   1 if the caller was not notified: a listener that missed messages is replaced
-- ARGV turns    FLAG   1 to take one message of each list of a priority in turn, 0 to empty one list after the other
-- ARGV width    COUNT  number of lists per priority
-- ARGV lease    MS     for which the caller holds the messages, until it renews
-- ARGV lists    TAIL   list, JSON of exchange and routing key, ...; in order of priority
--
-- Stops after the message that makes 1 MiB, and reads at most 15 of each list after it: no call blocks Redis for long.
-- Returns {the time, idle workers in the line, 1 if the caller is the listener now, "" or "flows" and the numbers of
-- the lists of paused queues, which are left out, number of the list, message, ...}; tags are counted from 1.
-- O(lists + messages * log index)

local MAX_BYTES, CHUNK, TOGETHER = 1048576, 16, 8
local IDLE, LISTENING = 60000, 60
-- include clock
-- A loop over steps of 0 would never end.
if not (width >= 1 and width % 1 == 0) then return redis.error_reply('ERR width: must be a whole number >= 1') end
-- Both are repeated.
if #tag > 128 or #channel > 1024 then return redis.error_reply('ERR tag, channel: must be shorter') end
local listening = redis.call('GET', listener)
-- A first write that needs no memory; and the caller is not idle.
redis.call('ZREM', line, channel)
-- check index, unacked, lease_ends
local lengths, total, flagged = {}, 0, redis.call('HLEN', flags)
local known, several, some = {flagged > 0 and 'flows' or nil}, {}, false
for i = FIRST, #lists, 2 do
  local list = lists[i]
  local row = (i - FIRST) / 2 % TOGETHER
  if row == 0 then
    -- Most lists are empty.
    for n = 1, TOGETHER do several[n] = lists[i + 2 * n - 2] end
    some = redis.call('EXISTS', unpack(several)) > 0
  end
  local length = some and redis.call('LLEN', list) or 0
  if flagged > 1 and redis.call('HEXISTS', flags, lists[i + 1]) == 1 then
    length, known[#known + 1] = 0, #lengths + 1
  end
  -- Removes nothing: without the permission for it, messages would be recorded and stay in their lists.
  if length > 0 and total == 0 then redis.call('LTRIM', list, 0, -1) end
  lengths[#lengths + 1], total = length, total + length
end
local peers = redis.call('ZCARD', line)
if peers > 0 then limit = math.min(limit, math.ceil(total / (peers + 1))) end

local text, lease_end = string.format('%.3f', now / 1000), string.format('%.3f', (now + lease) / 1000)
local reply, fields, scores, ends = {text, peers, 0, table.concat(known, ' ')}, {}, {}, {}
local count, bytes = 0, 0
local taken, read, ahead = {}, {}, {}
-- Return the next message of a list; reads the first one alone, then 16 at a time.
local function following(number)
  local done = taken[number] or 0
  if done >= lengths[number] then return nil end
  if done >= (ahead[number] or 0) then
    local most = math.min(done == 0 and 1 or CHUNK, lengths[number] - done, limit - count)
    local list = lists[FIRST + 2 * number - 2]
    read[number] = redis.call('LRANGE', list, -done - most, -done - 1)
    ahead[number] = done + most
  end
  local messages = read[number]
  taken[number] = done + 1
  return messages[ahead[number] - done]
end
local function take(number)
  local message = following(number)
  if not message then return false end
  count, bytes = count + 1, bytes + #message
  local name = tag .. string.format('%03d', count)
  fields[2 * count - 1], fields[2 * count] = name, '[' .. message .. ', ' .. lists[FIRST + 2 * number - 1] .. ']'
  scores[2 * count - 1], scores[2 * count] = text, name
  ends[2 * count - 1], ends[2 * count] = lease_end, name
  reply[2 * count + 3], reply[2 * count + 4] = number, message
  return true
end
for first = 1, total > 0 and #lengths or 0, width do
  local open = {}
  for number = first, first + width - 1 do
    if lengths[number] > 0 then open[#open + 1] = number end
  end
  while #open > 0 do
    local more = {}
    for _, number in ipairs(open) do
      local found
      repeat
        found = count < limit and bytes < MAX_BYTES and take(number)
      until turns or not found
      if found then more[#more + 1] = number end
    end
    open = more
  end
end
if count > 0 then
  redis.call('HSET', unacked, unpack(fields))
  redis.call('ZADD', index, unpack(scores))
  redis.call('ZADD', lease_ends, unpack(ends))
  for number, done in pairs(taken) do
    local list = lists[FIRST + 2 * number - 2]
    redis.call('LTRIM', list, 0, -done - 1)
  end
end

if count == 0 then
  if not listening or listening == channel or redis.call('PUBSUB', 'NUMSUB', listening)[2] == 0 then
    redis.call('SET', listener, channel, 'EX', LISTENING)
    reply[3] = 1
  else
    redis.call('ZADD', line, string.format('%.0f', now), channel)
    redis.call('PEXPIRE', line, IDLE)
  end
  redis.call('ZREMRANGEBYSCORE', line, '-inf', string.format('%.0f', now - IDLE))
  return reply
end
local left, wakes = total - count, 0
if listening == channel or missed then
  redis.call('DEL', listener)
  wakes = 1
end
if left > 0 then wakes = math.min(left, 2) end
-- include wake_idle
return reply
