-- Remove the in-flight records of settled messages of flows, and free their places.
--
-- KEYS[1] index    ZSET  delivery tag -> time from which the visibility timeout counts (s)
-- KEYS[2] unacked  HASH  delivery tag -> message, exchange and routing key as JSON
-- KEYS[3] config   HASH  flow -> its limits and rates
-- KEYS[4] running  HASH  flow, or flow and key -> number of places in use
-- KEYS[5] held     HASH  delivery tag -> the group of its message
-- KEYS[6] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[7] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[8] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- KEYS[9] owned       HASH  delivery tag -> the key that its message owns: until, token, task and key
-- KEYS[10] lease_ends  ZSET  delivery tag -> when its lease ends (s)
-- ARGV[1] now      ms; 0 = the server's TIME
-- ARGV[...] tags   delivery tags
--
-- Returns the tags that were not in flight: their leases were lost.
-- O(tags * log index)
local index, unacked, config, running, held = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owners, owner_ends, replaced, owned, lease_ends = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local now = tonumber(ARGV[1])
local tags = {unpack(ARGV, 2)}

-- include clock
-- include flow_ready
-- include flow_offer
-- include flow_free
-- include unique_owner
-- include unique_settle
-- include remove_records
free(tags)
free_keys(tags, missing)
for queue in pairs(changed) do signal(queue) end
return missing
