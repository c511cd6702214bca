-- Look at records that could not be read, oldest first.
--
-- KEYS[1] quarantine LIST  unreadable records
-- ARGV[1] offset     how many to pass over
-- ARGV[2] limit      most records
--
-- Returns {"<ms> <id length> <reason length>\n<id><reason><raw>", ...}
-- O(offset + limit)
local quarantine = KEYS[1]
local offset, limit = tonumber(ARGV[1]), tonumber(ARGV[2])

return redis.call('LRANGE', quarantine, offset, offset + limit - 1)
