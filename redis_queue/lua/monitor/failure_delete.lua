-- Delete failures, by hand or after their messages were stored for a retry.
--
-- KEYS failures, tracebacks, failed_at, groups, retrying, slot
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV token     TEXT  of a caller that retries them; empty = by hand
-- ARGV rest      LIST  id and time of the failure in ms, two for each
--
-- Returns flags: 1 = deleted, 0 = gone, replaced by a later failure, or another caller retries it.
-- O(failures * log N)

-- include clock, last_call
if last == sequence then return outcome end
-- check failures, tracebacks, groups, retrying, failed_at
-- include remove_failure
-- first_write failures
local flags = {}
for i = 1, #rest, 2 do
  local id = rest[i]
  local ends, owner = string.match(redis.call('HGET', retrying, id) or '', '^(%d+) (.*)$')
  local free = owner == token or not owner or tonumber(ends) <= now
  local same = tonumber(redis.call('ZSCORE', failed_at, id)) == tonumber(rest[i + 1])
  flags[#flags + 1] = free and same and '1' or '0'
  if free and same then remove_failure(id) end
end
return remember(table.concat(flags))
