-- Remove the in-flight records of settled messages of kombu's Redis transport.
--
-- KEYS[1] index    ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked  HASH  delivery tag -> message, exchange and routing key as JSON
-- KEYS[3] lease_ends  ZSET  delivery tag -> when its lease ends (s)
-- ARGV[...] tags   delivery tags
--
-- Returns the tags that were not in flight: their leases were lost.
-- O(tags * log index)
local index, unacked, lease_ends = KEYS[1], KEYS[2], KEYS[3]
local tags = {unpack(ARGV, 1)}

-- include remove_records
return missing
