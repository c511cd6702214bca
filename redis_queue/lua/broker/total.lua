-- Count the messages in lists of kombu's Redis transport, all together.
--
-- KEYS unacked
-- ARGV lists  TAIL  the lists; keys of other types are skipped
--
-- Returns {messages in the lists, messages in flight}.
-- O(lists)

local total = 0
for i = FIRST, #lists do
  local list = lists[i]
  local length = redis.pcall('LLEN', list)
  if type(length) == 'number' then total = total + length end
end
return {total, redis.call('HLEN', unacked)}
