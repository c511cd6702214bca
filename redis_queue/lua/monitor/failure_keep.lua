-- Keep failures of tasks; each replaces an earlier failure with its id. Removes those that are too old or too many.
--
-- KEYS failures, tracebacks, failed_at, groups, retrying, slot
-- ARGV now       TIME   0 = the server's clock
-- ARGV sequence  TEXT   number of the call, grows per caller; a repeat changes nothing, a lower number is refused
-- ARGV most      COUNT  failures that are kept
-- ARGV days      TEXT   for which they are kept, may be a fraction
-- ARGV missed    COUNT  failures that the caller could not keep
-- ARGV rest      LIST   id, time in ms, task, exception, JSON, traceback and message; six for each
--
-- Returns the number of kept failures. Removes at most 100 more than it adds. Groups beyond 500 count as "(other)".
-- O(failures * log N)

local DAY, TRIM, MAX_GROUPS = 86400000, 100, 500
-- include clock, last_call
if last == sequence then return tonumber(outcome) end
-- check failures, tracebacks, failed_at, groups, retrying
-- include remove_failure

local keep = tonumber(days) * DAY
redis.call('HSET', groups, 'limits', string.format('%.0f ', most) .. days)
if missed > 0 then
  local before = tonumber(string.match(redis.call('HGET', groups, 'not_kept') or '', '^%d+')) or 0
  redis.call('HSET', groups, 'not_kept', string.format('%.0f %.0f', before + missed, now))
end

local function add(id, at, task, exception, summary, traceback)
  local before = tonumber(redis.call('ZSCORE', failed_at, id))
  if before and before > at then return end
  if before then remove_failure(id) end
  local group = task .. '\0' .. exception
  local row = redis.call('HGET', groups, group)
  if not row and redis.call('HLEN', groups) >= MAX_GROUPS then
    group = '(other)\0(other)'
    row = redis.call('HGET', groups, group)
  end
  local count, first = string.match(row or '', '^(%d+) (%d+) ')
  local time = string.format('%.0f', at)
  row = string.format('%.0f ', (count or 0) + 1) .. (first or time) .. ' ' .. time .. ' ' .. id
  redis.call('HSET', groups, group, row)
  redis.call('HSET', failures, id, group .. '\0' .. summary)
  redis.call('HSET', tracebacks, id, traceback)
  redis.call('ZADD', failed_at, time, id)
end

for i = 1, #rest, 6 do
  add(rest[i], math.min(tonumber(rest[i + 1]), now), rest[i + 2], rest[i + 3], rest[i + 4], rest[i + 5])
end
local excess = redis.call('ZCARD', failed_at) - most
local oldest = redis.call('ZRANGE', failed_at, 0, #rest / 6 + TRIM - 1, 'WITHSCORES')
for i = 1, #oldest, 2 do
  if (i + 1) / 2 <= excess or tonumber(oldest[i + 1]) < now - keep then remove_failure(oldest[i]) end
end
local lifetime = string.format('%.0f', keep + DAY)
for _, key in ipairs({failures, tracebacks, failed_at, groups, retrying}) do redis.call('PEXPIRE', key, lifetime) end
return remember(redis.call('ZCARD', failed_at))
