-- Count dispatched entries in the totals and in this minute, and store or remove the report of the dispatcher.
--
-- KEYS lateness, minutes, dispatchers, slot
-- ARGV now       TIME   0 = the server's clock
-- ARGV sequence  TEXT   number of the call, grows per caller; a repeat changes nothing, a lower number is refused
-- ARGV sent      COUNT  entries sent
-- ARGV failed    COUNT  entries that could not be sent
-- ARGV sum       MS     of their lateness
-- ARGV worst     MS     of them
-- ARGV member    TEXT   name of the dispatcher; empty = no report
-- ARGV row       TEXT   JSON of its report; empty = it left
-- ARGV times     TEXT   histogram of it, see includes/tallies.lua; empty = none
--
-- Returns 1 = done, 0 = an earlier attempt did it. Of ten random dispatchers, those not seen for an hour are removed.
-- O(1)

local MINUTES, GONE, LOOK = 1440, 3600000, 10
-- include clock, last_call, tallies
if last == sequence then return 0 end
-- check lateness, minutes
local there = redis.call('HRANDFIELD', dispatchers, LOOK, 'WITHVALUES')
-- first_write lateness
if sent + failed > 0 then
  redis.call('HINCRBY', lateness, 'sent', sent)
  redis.call('HINCRBY', lateness, 'failed', failed)
  if times ~= '' then redis.call('HSET', lateness, 'times', join(redis.call('HGET', lateness, 'times'), times)) end
  local minute = math.floor(now / 60000)
  local field = minute % MINUTES
  local found = {string.match(redis.call('HGET', minutes, field) or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')}
  -- Replace numbers of another day, or from before the clock went back.
  if tonumber(found[1]) ~= minute then found = {minute, 0, 0, 0, 0} end
  redis.call('HSET', minutes, field, string.format('%.0f %.0f %.0f %.0f %.0f', minute, found[2] + sent,
    found[3] + failed, found[4] + sum, math.max(found[5], worst)))
end
for i = 1, #there, 2 do
  local seen = tonumber(string.match(there[i + 1], '^%d+')) or 0
  local gone = now - seen > GONE
  if gone then redis.call('HDEL', dispatchers, there[i]) end
end
if member ~= '' and row == '' then redis.call('HDEL', dispatchers, member) end
if row ~= '' then redis.call('HSET', dispatchers, member, string.format('%.0f ', now) .. row) end
remember('')
return 1
