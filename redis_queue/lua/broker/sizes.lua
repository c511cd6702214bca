-- Count the messages of each queue in lists of kombu's Redis transport.
--
-- KEYS unacked
-- ARGV width  COUNT  number of lists per queue
-- ARGV lists  TAIL   the lists, queue by queue; keys of other types are skipped
--
-- Returns {messages in flight, messages in the lists of the first queue, of the second, ...}.
-- O(lists)

local sizes = {redis.call('HLEN', unacked)}
for i = FIRST, #lists do
  local list, number = lists[i], 2 + math.floor((i - FIRST) / math.max(1, width))
  sizes[number] = (sizes[number] or 0) + (tonumber(redis.pcall('LLEN', list)) or 0)
end
return sizes
