-- Return a message that is in flight to its queue, unless its record has changed or is gone.
--
-- kombu does this in a transaction, which a full Redis refuses. The lists belong to kombu, and are not declared.
--
-- KEYS index, unacked, lease_ends
-- ARGV now     TIME  0 = the server's clock
-- ARGV tag     TEXT  delivery tag
-- ARGV record  TEXT  as the caller read it
-- ARGV ended   FLAG  1 = only if its lease has ended; the holder may have renewed it since it was found
-- ARGV last    FLAG  1 = after all others (left end), 0 = next one (right end)
-- ARGV lists   LIST  list, message, ...
--
-- Returns 1 = returned, 0 = another caller returned or settled it, or its lease goes on.
-- O(log index + lists)

-- include clock, returnable
-- first_write unacked
for i = 1, #lists, 2 do
  local list, message = lists[i], lists[i + 1]
  if last then redis.call('LPUSH', list, message) else redis.call('RPUSH', list, message) end
end
redis.call('ZREM', index, tag)
redis.call('HDEL', unacked, tag)
redis.call('ZREM', lease_ends, tag)
return 1
