-- Settle messages of flows, and take the next ones that the limits of their flows admit, each recorded as in flight.
--
-- A message waits in the list of its group: see flow/send.lua. A group whose key has no place free leaves its ring
-- until a place is freed, or until its time comes; so does a ring whose flow has none. What cannot run costs nothing.
-- This script computes the names of keys of rings and groups from that of the first key of flows.
--
-- KEYS[1] index      ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked    HASH  delivery tag -> message, exchange and routing key as JSON
-- KEYS[3] line       ZSET  channel of an idle worker -> when it last looked for messages (ms)
-- KEYS[4] listener   STRING  channel of the listener
-- KEYS[5] config     HASH  flow -> its limits and rates
-- KEYS[6] running    HASH  flow, or flow and key -> number of places in use
-- KEYS[7] rates      ZSET  flow, or flow and key -> time until which its rate is used up (ms)
-- KEYS[8] held       HASH  delivery tag -> the group of its message
-- KEYS[9] oldest     ZSET  group with messages -> since when it has some (ms)
-- KEYS[10] backlog    HASH  flow -> number of messages that wait
-- KEYS[11] flags     HASH  "" once there are flows, and all that is paused: flows of tasks, and queues as JSON
-- KEYS[12] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[13] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[14] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- KEYS[15] owned       HASH  delivery tag -> the key that its message owns: until, token, task and key
-- KEYS[16] lease_ends  ZSET  delivery tag -> when its lease ends (s)
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] limit      most messages
-- ARGV[3] at_once    most messages if other workers are idle: those that the caller starts at once
-- ARGV[4] tag        first part of the tags, followed by a number of three digits or more
-- ARGV[5] channel    on which the caller is woken
-- ARGV[6] turn       any whole number >= 0: which of several tasks of one priority comes first
-- ARGV[7] settled    number of delivery tags to settle
-- ARGV[8] lease      ms for which the caller holds the messages, until it renews
-- ARGV[...] more     these tags; then queue, JSON of exchange and routing key, ...
--
-- Stops after the message that makes 1 MiB, and after looking at 300 groups. A caller that took messages, or that left
-- some because it has no room, is not idle: it leaves the line, and another worker listens.
-- Returns {the time, 1 if more may be taken now, ms until more may be taken (-1 = unknown), signals, number of tags
-- that were not in flight, these, number of the queue, message, ...}; tags are counted from 1.
-- O((messages + groups) * log groups)
local index, unacked, line, listener, config = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local running, rates, held, oldest, backlog, flags = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local owners, owner_ends, replaced, owned, lease_ends = KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local now, limit, at_once, tag = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local channel, turn, settled, lease = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local more, FIRST = ARGV, 9
local MAX_BYTES, MOST, LOOKS, RINGS, SETTLED, MOST_OFFERS = 1048576, 100, 300, 100, 500, 20

-- include clock
-- include flow_ready
-- include flow_offer
-- include flow_free
-- include flow_limits
-- include unique_owner
-- include unique_message
-- include unique_settle
-- include unique_take
-- include flow_types
if #tag > 128 or #channel > 1024 then return redis.error_reply('ERR tag, channel: must be shorter') end
-- As includes/first_write.lua.
redis.call('HDEL', held, '')
local idle, pauses = redis.call('ZCARD', line), redis.call('HLEN', flags) > 1
settled = math.max(0, math.min(settled, SETTLED, #more - FIRST + 1))
local tags = {unpack(more, FIRST, FIRST + settled - 1)}
-- include remove_records
-- A caller that takes nothing leaves them to others.
local offered = limit > 0 and redis.call('ZRANGE', offers, 0, MOST_OFFERS - 1) or {}
free(tags)
free_keys(tags, missing)
offer_again(offered)

limit = math.min(limit, MOST)
-- The listener does not stand in the line.
local listening, peers = redis.call('GET', listener), idle
if listening and listening ~= channel and redis.call('PUBSUB', 'NUMSUB', listening)[2] > 0 then peers = peers + 1 end
if peers > 0 then limit = math.min(limit, at_once) end
-- include flow_take
local steps, queues, asked = {}, {}, {}
for i = FIRST + settled, #more - 1, 2 do
  local queue, route = more[i], more[i + 1]
  if asked[queue] then return redis.error_reply('ERR queue: must be named once') end
  asked[queue] = true
  local timers, open_rings = root .. 'timers:' .. queue, root .. 'open:' .. queue
  local has_some = redis.call('EXISTS', timers, open_rings) > 0
  local paused = pauses and redis.call('HEXISTS', flags, route) == 1
  local due = has_some and redis.call('ZRANGEBYSCORE', timers, '-inf', string.format('%.0f', now), 'LIMIT', 0, RINGS)
  for _, entry in ipairs(due or {}) do
    redis.call('ZREM', timers, entry)
    get_ready(entry)
  end
  local some = has_some and limit > 0 and not paused and redis.call('ZRANGE', open_rings, 0, RINGS - 1) or {}
  if #some == RINGS then
    -- Of many rings, others come into sight each time.
    local first = turn % (redis.call('ZCARD', open_rings) - RINGS + 1)
    some = redis.call('ZRANGE', open_rings, first, first + RINGS - 1)
  end
  for _, name in ipairs(some) do
    local step = tonumber(string.sub(name, 1, 1)) or 0
    steps[step] = steps[step] or {}
    local task = string.match(name, '^%d%z[^%z]*%z(.*)$') or ''
    local number, ring = (i - FIRST - settled) / 2 + 1, root .. 'ring:' .. name
    table.insert(steps[step], {name, number, queue, route, 'queue:' .. queue, task, ring})
  end
  queues[#queues + 1] = {queue, paused, has_some}
end
for step = 0, 9 do take_in_turns(steps[step] or {}) end
if count > 0 then
  redis.call('HSET', unacked, unpack(fields))
  redis.call('ZADD', index, unpack(scores))
  redis.call('ZADD', lease_ends, unpack(ends))
  redis.call('HSET', held, unpack(places))
  if #keys_owned > 0 then redis.call('HSET', owned, unpack(keys_owned)) end
end
if next(taken_keys) then save() end
local wakes, next_at, signals = 0, math.huge, {}
for i, row in ipairs(queues) do
  local queue, paused, had_some = unpack(row)
  local open_rings, timers, told = root .. 'open:' .. queue, root .. 'timers:' .. queue, root .. 'signal:' .. queue
  if had_some and not paused and redis.call('EXISTS', open_rings) == 1 then
    wakes = 1
    if count > 0 or changed[queue] then signal(queue) end
  end
  changed[queue] = nil
  local soonest = had_some and redis.call('ZRANGE', timers, 0, 0, 'WITHSCORES')[2]
  next_at = math.min(next_at, tonumber(soonest or math.huge))
  -- A caller that took messages asks again before it rests.
  signals[i] = count == 0 and redis.call('GET', told) or ''
end
for queue in pairs(changed) do signal(queue) end
-- Something waits for places that what was looked at cannot use.
if wakes == 0 and redis.call('EXISTS', offers) == 1 then wakes = 1 end
local more_now, next_in = wakes, next_at < math.huge and math.max(1, math.ceil(next_at - now)) or -1
if count > 0 or more_now > 0 then
  if idle > 0 then redis.call('ZREM', line, channel) end
  if listening == channel then
    redis.call('DEL', listener)
    wakes = 1
  end
end
if idle == 0 then wakes = 0 end
-- include wake_idle
local reply = {text, more_now, next_in, table.concat(signals, ' '), peers, #missing, unpack(missing)}
for _, part in ipairs(messages) do reply[#reply + 1] = part end
return reply
