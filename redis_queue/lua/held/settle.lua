-- Remove the in-flight records of settled messages of kombu's Redis transport.
--
-- KEYS[1] index    ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked  HASH  delivery tag -> message, exchange and routing key as JSON
-- ARGV[...] tags   delivery tags
--
-- Returns the tags that were not in flight: their leases were lost.
-- O(tags * log index)
local index, unacked = KEYS[1], KEYS[2]
local tags = {unpack(ARGV, 1)}

local missing = {}
for i, found in ipairs(redis.call('ZMSCORE', index, unpack(tags))) do
  if not found then missing[#missing + 1] = tags[i] end
end
redis.call('ZREM', index, unpack(tags))
redis.call('HDEL', unacked, unpack(tags))
return missing
