-- Return a message that is in flight to its queue, unless its record has changed or is gone.
--
-- kombu does this in a transaction, which a full Redis refuses. The lists belong to kombu: this script does not declare
-- them.
--
-- KEYS[1] index    ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked  HASH  delivery tag -> message, exchange and routing key as JSON
-- KEYS[3] lease_ends  ZSET  delivery tag -> when its lease ends (s)
-- ARGV[1] tag      delivery tag
-- ARGV[2] record   as the caller read it
-- ARGV[3] last     1 = after all others (left end), 0 = next one (right end)
-- ARGV[...] lists  list, message, ...
--
-- Returns 1 = returned, 0 = another caller returned or settled it.
-- O(log index + lists)
local index, unacked, lease_ends = KEYS[1], KEYS[2], KEYS[3]
local tag, record, last = ARGV[1], ARGV[2], ARGV[3] == '1'
local lists = {unpack(ARGV, 4)}

redis.call('ZCARD', index)
redis.call('ZCARD', lease_ends)
if redis.call('HGET', unacked, tag) ~= record then return 0 end
-- As includes/first_write.lua.
redis.call('HDEL', unacked, '')
for i = 1, #lists, 2 do
  local list, message = lists[i], lists[i + 1]
  if last then redis.call('LPUSH', list, message) else redis.call('RPUSH', list, message) end
end
redis.call('ZREM', index, tag)
redis.call('HDEL', unacked, tag)
redis.call('ZREM', lease_ends, tag)
return 1
