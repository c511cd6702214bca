-- Read the quarantine, oldest first.
--
-- KEYS quarantine
-- ARGV offset  COUNT  how many to skip
-- ARGV limit   COUNT  most records
-- ARGV budget  COUNT  bytes to return; of a record that does not fit only the part before its raw bytes
--
-- Returns {1 if it stopped before the limit, "<ms> <id length> <reason length>\n<id><reason><raw>", its bytes, ...}
-- Stops after the record that makes 1 MiB, and reads none after it, so that no call blocks Redis for long.
-- O(limit * (offset + limit))

local MAX_BYTES, MAX_HEAD = 1048576, 16384
local function head(raw)
  local line, id, reason = string.match(string.sub(raw, 1, 64), '^(%d+ (%d+) (%d+)\n)')
  return string.sub(raw, 1, line and math.min(#line + id + reason, MAX_HEAD) or 64)
end
local reply, bytes, returned = {0}, 0, 0
for i = offset, math.min(offset + limit, redis.call('LLEN', quarantine)) - 1 do
  if bytes >= MAX_BYTES then
    reply[1] = 1
    break
  end
  local raw = redis.call('LINDEX', quarantine, i)
  local kept = returned + #raw > budget and head(raw) or raw
  bytes, returned = bytes + #raw, returned + #kept
  reply[#reply + 1] = kept
  reply[#reply + 1] = #raw
end
return reply
