-- Count the messages in lists of kombu's Redis transport, all together.
--
-- KEYS[1] unacked    HASH    delivery tag -> message, exchange and routing key as JSON
-- ARGV[...] lists    the lists; keys of other types are skipped
--
-- Returns {messages in the lists, messages in flight}.
-- O(lists)
local unacked = KEYS[1]
local lists, FIRST = ARGV, 1

local total = 0
for i = FIRST, #lists do
  local list = lists[i]
  local length = redis.pcall('LLEN', list)
  if type(length) == 'number' then total = total + length end
end
return {total, redis.call('HLEN', unacked)}
