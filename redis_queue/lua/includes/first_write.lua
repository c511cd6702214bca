-- Make a first write that needs no memory, so that a full Redis executes the writes after it, too.
--
-- A full Redis refuses a command that may need memory, but never stops a script that has written. All scripts that only
-- free memory or move, or whose keys have a limited size, begin so: a full Redis can be drained. The field is never in
-- use, so nothing changes.
--
-- Needs leases.
redis.call('HDEL', leases, '')
