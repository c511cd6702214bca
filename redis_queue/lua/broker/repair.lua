-- Find messages in flight that no sweep returns, since they are not in the index; add them to it if asked.
--
-- kombu and redis_queue write and remove both parts of a message at once, so it never lacks one for a moment.
--
-- KEYS index, unacked, lease_ends
-- ARGV now     TIME  0 = the server's clock
-- ARGV repair  FLAG  1 = repair, 0 = only find
-- ARGV tags    LIST  delivery tags to check
--
-- An added message comes back as if a worker without a lease had taken it now.
-- Returns flags: 0 = not in flight, 1 = not in the index, 2 = without a lease, 3 = with a lease.
-- O(tags * log index)

-- include clock
local text = string.format('%.3f', now / 1000)
-- check lease_ends
if repair then
  -- first_write index
end
local flags = {}
for i, tag in ipairs(tags) do
  local taken = tonumber(redis.call('ZSCORE', index, tag) or '')
  local lease_end = tonumber(redis.call('ZSCORE', lease_ends, tag) or '')
  if redis.call('HEXISTS', unacked, tag) == 0 then
    flags[i] = 0
  elseif not taken then
    flags[i] = 1
    if repair then
      redis.call('ZREM', lease_ends, tag)
      redis.call('ZADD', index, text, tag)
    end
  else
    -- A lease that ended before its message was taken is an earlier one.
    flags[i] = (lease_end and taken <= lease_end) and 3 or 2
  end
end
return table.concat(flags)
