-- Add up texts of counts and histograms.
--
-- "a12b1!3000<90>700@20,5,7@31,1" is 12 for a, 1 for b, and a histogram named "!": the sum of its durations in ms, the
-- minimum and maximum in microseconds, 5 in bucket 20, 7 in 21, 1 in 31. Other characters are ignored.
--
-- Defines add: (sums, text) adds a text to a table and returns it, written: (sums) returns the text of a table, join:
-- (before, text) returns both texts, added up once they are long, as that takes time; the first may be nil or false.
local function add(sums, text)
  local LAST, min = 157, math.min
  local times, at = {sum = 0, first = LAST, last = 0}, 0
  for mark, digits in string.gmatch(text, '([a-d!#$<>@,])(%d+)') do
    if mark == ',' then
      times[at] = (times[at] or 0) + digits
      if at > times.last then times.last = at end
      if at < LAST then at = at + 1 end
    elseif mark == '@' then
      at = min(digits, LAST)
      times.first = min(times.first, at)
    elseif mark == '<' then
      times.least = min(times.least or digits, digits)
    elseif mark == '>' then
      times.most = math.max(times.most or digits, digits)
    elseif mark >= 'a' then
      sums[mark] = (sums[mark] or 0) + digits
    else
      times, at = sums[mark] or {sum = 0, first = LAST, last = 0}, 0
      times.sum, sums[mark] = times.sum + digits, times
    end
  end
  return sums
end
local function written(sums)
  local parts, form = {}, string.format
  for mark in string.gmatch('abcd!#$', '.') do
    local found = sums[mark]
    if type(found) == 'number' then
      parts[#parts + 1] = form('%s%.0f', mark, found)
    elseif found then
      parts[#parts + 1] = form('%s%.0f<%.0f>%.0f', mark, found.sum, found.least or 0, found.most or 0)
      local gap = 2
      for at = found.first, found.last do
        local count = found[at] or 0
        if count > 0 then
          parts[#parts + 1] = (gap > 1 and '@' .. at .. ',' or gap == 1 and ',0,' or ',') .. count
          gap = 0
        else
          gap = gap + 1
        end
      end
    end
  end
  return table.concat(parts)
end
local function join(before, text)
  local LONG = 1200
  local joined = (before or '') .. text
  return #joined > LONG and written(add({}, joined)) or joined
end
