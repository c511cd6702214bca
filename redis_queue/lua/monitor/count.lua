-- Add counts of ended runs to those of the current minute.
--
-- Counts are letters with numbers, and histograms: see includes/tallies.lua. The first call in a new minute closes the
-- one before: its counts go to the minutes of its hour, to its hour and day, and to the totals. All series are added up
-- under number 0. Beyond 200, series are counted under number 1, until one was not used for 90 days.
--
-- KEYS series, totals, current, minutes_0, minutes_1, minutes_2, hours_0, hours_1, hours_2, hours_3, slot
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat within a day changes nothing, a lower one fails
-- ARGV counts    LIST  series and counts; two for each, at most 100, and 128 KiB
--
-- Returns 1 = done, 0 = an earlier attempt did it, -1 = part of the last minute is closed: call again.
-- O(counts)

local MAX_SERIES, ALL_SERIES, UNUSED, BACK, CLOSE = 200, 300, 90, 60, 5
local KEEP_MINUTES, KEEP_HOURS, KEEP_TOTALS, REPEATS = 345600, 10368000, 31536000, 86400000
-- include clock, last_call
if last == sequence then return 0 end
if #table.concat(counts) > 131072 then return redis.error_reply('ERR counts: must be at most 131072 bytes') end
-- check totals
local open = tonumber(redis.call('HGET', current, 'minute') or nil)
local days, spans = {minutes_0, minutes_1, minutes_2}, {hours_0, hours_1, hours_2, hours_3}
for _, ring in ipairs({minutes_0, minutes_1, minutes_2, unpack(spans)}) do redis.call('HLEN', ring) end
local used = redis.call('HLEN', series)
-- first_write series
local whole = function(number) return string.format('%.0f', number) end

-- include tallies

-- Empty a key of a ring if it holds another period.
local function begin(ring, field, period, seconds)
  if redis.call('HGET', ring, field) ~= period then redis.call('UNLINK', ring) end
  redis.call('HSET', ring, field, period)
  redis.call('EXPIRE', ring, seconds)
end

local function close(minute)
  local day = math.floor(minute / 1440)
  local hour, span = math.floor(minute / 60) % 24, math.floor(day / 30)
  local of_day, of_span = days[1 + day % 3], spans[1 + span % 4]
  begin(of_day, 'day', whole(day), KEEP_MINUTES)
  begin(of_span, 'span', whole(span), KEEP_HOURS)
  local rows = redis.call('HRANDFIELD', current, CLOSE + 1, 'WITHVALUES')
  for i = 1, #rows, 2 do
    local number, text = rows[i], written(add({}, rows[i + 1]))
    if number ~= 'minute' then
      local of_hour, of_date = number .. ':' .. whole(hour), number .. ':' .. whole(day)
      local before = redis.call('HGET', of_day, of_hour)
      redis.call('HSET', of_day, of_hour, (before and before .. ';' or '') .. whole(minute % 60) .. '=' .. text)
      local hours = redis.call('HGET', of_span, of_date)
      local newest, newest_counts, older = string.match(hours or '', '^(%d+)=([^;]*)(.*)$')
      local same = newest == whole(hour)
      hours = same and older or hours and ';' .. hours or ''
      hours = whole(hour) .. '=' .. written(add(add({}, same and newest_counts or ''), text)) .. hours
      local of_sum = of_date .. ':sum'
      redis.call('HSET', of_span, of_date, hours, of_sum, join(redis.call('HGET', of_span, of_sum), text))
      redis.call('HSET', totals, number, join(redis.call('HGET', totals, number), text))
      redis.call('HDEL', current, number)
    end
  end
  redis.call('EXPIRE', totals, KEEP_TOTALS)
  return redis.call('HLEN', current) <= 1 and redis.call('UNLINK', current)
end

local minute, day = math.floor(now / 60000), math.floor(now / 86400000)
-- A clock that goes back by less than an hour adds to the minute that is open.
if open and (minute > open or minute < open - BACK) then
  if not close(open) then return -1 end
  open = nil
end

local all, full = {}, false
local function number_of(name)
  local number, last_day = string.match(redis.call('HGET', series, name) or '', '^(%d+) (%d+)$')
  if last_day == whole(day) then return number end
  if not number and used > MAX_SERIES and not full then
    local rows = redis.call('HRANDFIELD', series, ALL_SERIES, 'WITHVALUES')
    for i = 1, #rows, 2 do
      if rows[i] ~= 'next' and (tonumber(string.match(rows[i + 1], '^%d+ (%d+)$')) or 0) < day - UNUSED then
        used = used - redis.call('HDEL', series, rows[i])
        redis.call('HDEL', totals, string.match(rows[i + 1], '^%d+') or '')
      end
    end
    full = used > MAX_SERIES
  end
  if name == '(other)\0(other)' or (not number and full) then return '1' end
  if not number then
    local next = math.max(2, tonumber(redis.call('HGET', series, 'next') or nil) or 2)
    number, used = whole(next), used + 1 + redis.call('HSET', series, 'next', whole(next + 1))
  end
  redis.call('HSET', series, name, number .. ' ' .. whole(day))
  return number
end

for i = 1, #counts - 1, 2 do
  local number = number_of(counts[i])
  redis.call('HSET', current, number, join(redis.call('HGET', current, number), counts[i + 1]))
  add(all, counts[i + 1])
end
redis.call('HSET', current, '0', join(redis.call('HGET', current, '0'), written(all)), 'minute', whole(open or minute))
redis.call('EXPIRE', current, KEEP_MINUTES)
redis.call('EXPIRE', series, KEEP_TOTALS)
remember('')
redis.call('PEXPIRE', slot, REPEATS)
return 1
