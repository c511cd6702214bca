-- Look at records that could not be read, oldest first.
--
-- KEYS[1] quarantine LIST  unreadable records
-- ARGV[1] offset     how many to pass over
-- ARGV[2] limit      most records
--
-- Returns {1 if it stopped before the limit, "<ms> <id length> <reason length>\n<id><reason><raw>", ...}
-- Stops after the record that makes 1 MiB, and reads none behind it: one call never blocks Redis for long.
-- O(limit * (offset + limit))
local quarantine = KEYS[1]
local offset, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local MAX_BYTES = 1048576

local reply, bytes = {0}, 0
for i = offset, math.min(offset + limit, redis.call('LLEN', quarantine)) - 1 do
  if bytes >= MAX_BYTES then
    reply[1] = 1
    break
  end
  local raw = redis.call('LINDEX', quarantine, i)
  reply[#reply + 1] = raw
  bytes = bytes + #raw
end
return reply
