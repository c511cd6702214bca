-- Change the due time of a waiting entry.
--
-- KEYS waiting, slot, wake
-- ARGV now       TIME  0 = the server's clock
-- ARGV id        TEXT  of the entry
-- ARGV delay     MS    from now
-- ARGV due       TIME  0 = use the delay
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
--
-- Returns 1 = changed, 0 = unknown id, or claimed.
-- O(log waiting)

-- include clock, last_call
if last == sequence then return tonumber(outcome) end
if due == 0 then due = now + delay end
-- first_write waiting
if not redis.call('ZSCORE', waiting, id) then return remember(0) end
-- include wake_dispatcher
-- XX: never add a claimed entry again.
redis.call('ZADD', waiting, 'XX', string.format('%.0f', due), id)
wake_dispatcher(due)
return remember(1)
