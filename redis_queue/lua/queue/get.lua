-- Ack messages that are done, then claim ready ones under one lease.
--
-- KEYS meta, records, ready, waiting, in_flight, leases, quarantine, wake, errors, slot
-- ARGV now       TIME   0 = the server's clock
-- ARGV lease     MS     length
-- ARGV limit     COUNT  most messages to claim
-- ARGV nonce     TEXT   new for every call, part of the token
-- ARGV sequence  TEXT   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV held      LIST   id, token of each message to ack
--
-- Returns {token, end of the lease, ms until the next delayed message is due or lease expires (-1 = none), flags, then
-- id, deliveries and record of each message}. Token "" = nothing ready, "-" = paused, "+" = only unreadable messages
-- were ready, which went to quarantine: claim again. Flags: 1 = acked, 0 = lease lost, nothing changed.
-- Stops after the message that makes 1 MiB, and reads none after it, so that no call blocks Redis for long.
-- O((held + limit) * log in flight)

local MAX_BYTES = 1048576
if #nonce > 128 then return redis.error_reply('ERR nonce: must be at most 128 bytes') end
-- include schema, clock, unreadable, last_call
if last == sequence then
  local flags, claim = string.match(outcome, '^([01]*) (.*)$')
  local reply = {claim == '+' and claim or '', 0, -1, flags}
  -- That lease ends no later than one of this length that begins now. If it is not among the last 1,000 of those, its
  -- messages come back when it ends.
  local latest = string.format('%.0f', now + lease)
  local newest = redis.call('ZRANGE', in_flight, latest, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1000)
  local counts = #newest > 0 and redis.call('HMGET', leases, unpack(newest)) or {}
  for i = #newest, 1, -1 do
    local deliveries, token = string.match(counts[i] or '', '^(%d+) (.+)$')
    if token == claim then
      reply[1] = token
      reply[2] = tonumber(redis.call('ZSCORE', in_flight, newest[i]))
      reply[#reply + 1] = newest[i]
      reply[#reply + 1] = tonumber(deliveries)
      reply[#reply + 1] = redis.call('HGET', records, newest[i])
    end
  end
  return reply
end

-- One more than the limit shows whether any are left.
local ids = redis.call('LRANGE', ready, -limit - 1, -1)
local due = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
local woken = redis.call('LLEN', wake) > 0
-- check quarantine
-- include fence
if #done > 0 then
  -- include finish
end
local function kept(reply)
  remember(flags .. ' ' .. reply[1])
  return reply
end
-- first_write leases
if redis.call('HEXISTS', meta, 'paused') == 1 then return kept({'-', 0, -1, flags}) end

local soonest = redis.call('ZRANGE', in_flight, 0, 0, 'WITHSCORES')[2]
soonest = math.min(tonumber(soonest or math.huge), tonumber(due or math.huge))
local next_in = soonest < math.huge and math.max(0, soonest - now) or -1
if #ids == 0 then
  redis.call('DEL', wake)
  return kept({'', 0, next_in, flags})
end
local first = math.max(1, #ids - limit + 1)
local counts = redis.call('HMGET', leases, unpack(ids, first))
local token = string.format('%.0f-%s', redis.call('HINCRBY', meta, 'claims', 1), nonce)
local expires = now + lease
local reply, scores, fields, lost, bytes, taken = {token, expires, next_in, flags}, {}, {}, {}, 0, 0
local size, width, unread = 4, 0, {}
for i = #ids, first, -1 do
  local id, count = ids[i], counts[i - first + 1]
  local record = redis.call('HGET', records, id)
  -- include frame
  if whole then
    local deliveries = 1
    if count then deliveries = (tonumber(string.match(count, '^%d+')) or 0) + 1 end
    scores[width + 1], scores[width + 2] = expires, id
    fields[width + 1], fields[width + 2] = id, deliveries .. ' ' .. token
    width = width + 2
    reply[size + 1], reply[size + 2], reply[size + 3] = id, deliveries, record
    size = size + 3
  else
    unread[#unread + 1] = unreadable(id, record)
    lost[#lost + 1] = id
  end
  taken, bytes = taken + 1, bytes + #(record or '')
  if bytes >= MAX_BYTES then break end
end
if #lost > 0 then redis.call('RPUSH', quarantine, unpack(unread)) end
if width > 0 then
  redis.call('ZADD', in_flight, unpack(scores))
  redis.call('HSET', leases, unpack(fields))
end
redis.call('LTRIM', ready, 0, -taken - 1)
if #lost > 0 then
  redis.call('HDEL', records, unpack(lost))
  redis.call('HDEL', leases, unpack(lost))
end
if taken < #ids and not woken then redis.call('RPUSH', wake, '1') end
if width == 0 then reply[1] = '+' end
return kept(reply)
