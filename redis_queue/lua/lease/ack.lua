-- Ack claimed messages or entries: delete them.
--
-- KEYS[1] meta       HASH  counters
-- KEYS[2] records    HASH  id -> record
-- KEYS[3] in_flight  ZSET  id -> end of its lease (ms)
-- KEYS[4] leases     HASH  id -> "<deliveries> <token>"
-- KEYS[5] errors     HASH  id -> last reason
-- KEYS[6] slot       STRING number and outcome of this caller's last call
-- ARGV[1] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[...] held     id, token; two for each
--
-- Returns flags: 1 = acked, 0 = lease lost, nothing changed.
-- O(held * log in flight)
local meta, records, in_flight, leases, errors, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local sequence = ARGV[1]
local held = {unpack(ARGV, 2)}

-- include last_call
if last == sequence then return outcome end
redis.call('HLEN', meta)
-- include fence
if #done == 0 then return flags end
-- include finish
return remember(flags)
