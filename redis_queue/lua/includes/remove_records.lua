-- Remove the in-flight records of messages, and their leases.
--
-- Needs index, unacked, lease_ends, tags. Defines missing: the tags that were not in flight.
local missing = {}
if #tags > 0 then
  for i, found in ipairs(redis.call('ZMSCORE', index, unpack(tags))) do
    if not found then missing[#missing + 1] = tags[i] end
  end
  redis.call('ZREM', lease_ends, unpack(tags))
  redis.call('ZREM', index, unpack(tags))
  redis.call('HDEL', unacked, unpack(tags))
end
