-- Settle messages of flows, and take the next ones that the limits of their flows admit, each recorded as in flight.
--
-- A message waits in the list of its group: see admission/send.lua. A group whose key has no place free leaves its ring
-- until a place is freed, or until its time comes; so does a ring whose flow has none. What cannot run costs nothing.
-- This script computes the names of keys of rings and groups from that of the first key of flows.
--
-- KEYS index, unacked, line, listener, config, running, rates, held, oldest, backlog, flags, owners, owner_ends,
-- KEYS replaced, owned, lease_ends
-- ARGV now      TIME    0 = the server's clock
-- ARGV limit    COUNT   most messages
-- ARGV at_once  COUNT   most messages if other workers are idle: those that the caller starts at once
-- ARGV tag      TEXT    first part of the tags, followed by a number of three digits or more
-- ARGV channel  TEXT    on which the caller is woken
-- ARGV turn     NUMBER  any whole number >= 0: which of several tasks of one priority comes first
-- ARGV settled  COUNT   number of delivery tags to settle
-- ARGV lease    MS      for which the caller holds the messages, until it renews
-- ARGV more     TAIL    these tags; then queue, JSON of exchange and routing key, ...
--
-- Stops after the message that makes 1 MiB, and after looking at 300 groups. A caller that took messages, or that left
-- some because it has no room, is not idle: it leaves the line, and another worker listens.
-- Returns {the time, 1 if more may be taken now, ms until more may be taken (-1 = unknown), signals, number of tags
-- that were not in flight, these, number of the queue, message, ...}; tags are counted from 1.
-- O((messages + groups) * log groups)

local MAX_BYTES, MAX_MESSAGES, MAX_CHECKS, RINGS, SETTLED, MAX_OFFERS = 1048576, 100, 300, 100, 500, 20
-- include clock, flow_ready, flow_offer, flow_free, flow_limits, unique_owner, unique_message
-- include unique_settle, unique_take
-- check backlog, oldest, rates, running, owners, owner_ends, replaced, owned
if #tag > 128 or #channel > 1024 then return redis.error_reply('ERR tag, channel: must be shorter') end
-- first_write held
local idle, pauses = redis.call('ZCARD', line), redis.call('HLEN', flags) > 1
settled = math.max(0, math.min(settled, SETTLED, #more - FIRST + 1))
local tags = {unpack(more, FIRST, FIRST + settled - 1)}
-- include remove_records
-- A caller that takes nothing leaves them to others.
local offered = limit > 0 and redis.call('ZRANGE', offers, 0, MAX_OFFERS - 1) or {}
free(tags)
free_keys(tags, missing)
offer_again(offered)

limit = math.min(limit, MAX_MESSAGES)
-- The listener is not in the line.
local listening, peers = redis.call('GET', listener), idle
if listening and listening ~= channel and redis.call('PUBSUB', 'NUMSUB', listening)[2] > 0 then peers = peers + 1 end
if peers > 0 then limit = math.min(limit, at_once) end
-- Of flow_ready: root, changed, signal. Of flow_limits: taken_keys, save. Of flow_take: count and the rows to write.
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
    -- Of many rings, each call checks others.
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
-- Something waits for places that the checked groups cannot use.
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
