-- Remove the in-flight records of settled messages of flows, and free their places.
--
-- KEYS index, unacked, config, running, held, owners, owner_ends, replaced, owned, lease_ends
-- ARGV now   TIME  0 = the server's clock
-- ARGV tags  LIST  delivery tags
--
-- Returns the tags that were not in flight: their leases were lost.
-- O(tags * log index)

-- include clock, flow_ready, flow_offer, flow_free, unique_owner, unique_settle, remove_records
free(tags)
free_keys(tags, missing)
for queue in pairs(changed) do signal(queue) end
return missing
