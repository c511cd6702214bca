-- Ack claimed messages or entries: delete them.
--
-- KEYS meta, records, in_flight, leases, errors, slot
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV held      LIST  id, token; two for each
--
-- Returns flags: 1 = acked, 0 = lease lost, nothing changed.
-- O(held * log in flight)

-- include last_call
if last == sequence then return outcome end
-- check meta
-- include fence
if #done == 0 then return flags end
-- include finish
return remember(flags)
