-- Remove the in-flight records of settled messages of kombu's Redis transport.
--
-- KEYS index, unacked, lease_ends
-- ARGV tags  LIST  delivery tags
--
-- Returns the tags that were not in flight: their leases were lost.
-- O(tags * log index)

-- include remove_records
return missing
