-- Read a page of waiting entries by due time, then id.
--
-- KEYS records, waiting, leases
-- ARGV low        TEXT   due at or after, ms
-- ARGV high       TEXT   due before, ms, or +inf
-- ARGV limit      COUNT  most entries
-- ARGV after_due  TEXT   continue after this due time, ms; "" = from the start
-- ARGV after_id   TEXT   and this id
-- ARGV budget     COUNT  bytes of records to return; a record that does not fit is replaced by its size
--
-- Returns {1 if it stopped before its limit, id, deliveries, due time, record, "" or size, ...}
-- Stops after the entry that makes 1 MiB, so that no call blocks Redis for long.
-- O(log waiting ^ 2 + limit)

local MAX_BYTES = 1048576
-- An edited due time may be before the epoch or between two milliseconds; a cursor has neither.
local function told(due) return math.max(0, math.floor(due)) end
-- A sorted set compares bytes, but < in Lua uses the server's locale.
local function behind(id, other)
  for i = 1, math.min(#id, #other) do
    local mine, its = string.byte(id, i), string.byte(other, i)
    if mine ~= its then return mine > its end
  end
  return #id > #other
end
local first = redis.call('ZCOUNT', waiting, '-inf', '(' .. low)
local stop = redis.call('ZCOUNT', waiting, '-inf', '(' .. high)
local last = after_due ~= '' and redis.call('ZSCORE', waiting, after_id)
if last and told(last) == tonumber(after_due) then
  first = math.max(first, redis.call('ZRANK', waiting, after_id) + 1)
elseif after_due ~= '' then
  -- It is gone. Entries due in the same millisecond are in byte order of their ids: search for the next one.
  local left = tonumber(after_due) > 0 and redis.call('ZCOUNT', waiting, '-inf', '(' .. after_due) or 0
  local right = redis.call('ZCOUNT', waiting, '-inf', string.format('(%.0f', after_due + 1))
  while left < right do
    local middle = math.floor((left + right) / 2)
    if behind(redis.call('ZRANGE', waiting, middle, middle)[1], after_id) then right = middle else left = middle + 1 end
  end
  first = math.max(first, left)
end
local reply, bytes = {0}, 0
if first >= stop then return reply end
local found = redis.call('ZRANGE', waiting, first, math.min(first + limit, stop) - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local id, more = found[i], i + 1 < #found
  reply[#reply + 1] = id
  reply[#reply + 1] = tonumber(string.match(redis.call('HGET', leases, id) or '', '^%d+')) or 0
  reply[#reply + 1] = told(found[i + 1])
  -- include budget
end
return reply
