-- Claim due entries under one lease, in order of due time.
--
-- KEYS meta, records, waiting, in_flight, leases, quarantine, slot
-- ARGV now         TIME   0 = the server's clock
-- ARGV lease       MS     length
-- ARGV limit       COUNT  most entries to claim
-- ARGV older_than  MS     only entries that have been due for at least this long; -n = also those due in up to n ms
-- ARGV within      MS     only entries that have been due for at most this long; 0 = no limit
-- ARGV nonce       TEXT   new for every call, part of the token
-- ARGV sequence    TEXT   number of the claim, grows per caller; a repeat gets the same claim, a lower one is refused
--
-- Returns {token, end of the lease, 1 = there may be more, then id, deliveries, due time and record of each entry}.
-- Token "" = nothing due, "+" = only unreadable entries were due, which went to quarantine: claim again.
-- Stops after the entry that makes 1 MiB, and reads none after it, so that no call blocks Redis for long.
-- O(limit * log waiting)

local MAX_BYTES = 1048576
if #nonce > 128 then return redis.error_reply('ERR nonce: must be at most 128 bytes') end
-- include schema, clock, unreadable, last_call
if last == sequence then
  -- The newest leases end last. If the lease of this claim is not among them, its entries are put back when it ends.
  local newest = redis.call('ZREVRANGE', in_flight, 0, 999)
  local held = #newest > 0 and redis.call('HMGET', leases, unpack(newest)) or {}
  local reply = {outcome == '+' and outcome or '', 0, 1}
  for i = #newest, 1, -1 do
    local deliveries, token = string.match(held[i] or '', '^(%d+) (.+)$')
    if token == outcome then
      reply[1] = token
      local ends = tonumber(redis.call('ZSCORE', in_flight, newest[i]))
      reply[2] = math.min(ends, now + lease)
      reply[#reply + 1] = newest[i]
      reply[#reply + 1] = tonumber(deliveries)
      -- The due time is no longer stored. Return a time that is not before it: now, or the end of an early lease.
      reply[#reply + 1] = older_than < 0 and ends or now
      reply[#reply + 1] = redis.call('HGET', records, newest[i])
    end
  end
  return reply
end
local function kept(reply)
  remember(reply[1])
  return reply
end

local low = within > 0 and string.format('%.0f', now - within) or '-inf'
local due = redis.call('ZRANGEBYSCORE', waiting, low, string.format('%.0f', now - older_than),
  'WITHSCORES', 'LIMIT', 0, limit)
-- check quarantine, in_flight
-- first_write leases
if #due == 0 then return kept({'', 0, 0}) end
local ids = {}
for i = 1, #due, 2 do ids[#ids + 1] = due[i] end
local held = redis.call('HMGET', leases, unpack(ids))
local token = string.format('%.0f-%s', redis.call('HINCRBY', meta, 'claims', 1), nonce)
local expires = now + lease
local reply, scores, fields, lost, gone, bytes = {token, expires, #ids == limit and 1 or 0}, {}, {}, {}, {}, 0
for i, id in ipairs(ids) do
  local record = redis.call('HGET', records, id)
  -- include frame
  gone[i] = id
  if whole then
    local deliveries = 1
    if held[i] then deliveries = (tonumber(string.match(held[i], '^%d+')) or 0) + 1 end
    -- An entry that is claimed early and not acked is put back when it is due, not before.
    scores[#scores + 1], scores[#scores + 2] = math.max(expires, tonumber(due[2 * i])), id
    fields[#fields + 1], fields[#fields + 2] = id, deliveries .. ' ' .. token
    reply[#reply + 1] = id
    reply[#reply + 1] = deliveries
    reply[#reply + 1] = tonumber(due[2 * i])
    reply[#reply + 1] = record
  else
    redis.call('RPUSH', quarantine, unreadable(id, record))
    lost[#lost + 1] = id
  end
  bytes = bytes + #(record or '')
  if bytes >= MAX_BYTES and i < #ids then
    reply[3] = 1
    break
  end
end
if #scores > 0 then
  redis.call('ZADD', in_flight, unpack(scores))
  redis.call('HSET', leases, unpack(fields))
end
redis.call('ZREM', waiting, unpack(gone))
if #lost > 0 then
  redis.call('HDEL', records, unpack(lost))
  redis.call('HDEL', leases, unpack(lost))
end
if #scores == 0 then reply[1] = '+' end
return kept(reply)
