-- Note that the message of an owner was stored until it is due; what it replaces does not run.
--
-- KEYS slot, owners, owner_ends, replaced
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV field     TEXT  task, NUL and key
-- ARGV token     TEXT  of the message
-- ARGV gone      FLAG  1 = what it replaces was removed from the store by the caller
--
-- Returns 1 = it owns the key, 0 = it no longer owns it, and does not run.
-- O(log owners)

-- include last_call
if last == sequence then return tonumber(outcome) end
-- include clock, unique_owner, unique_confirm
-- check owner_ends, replaced
-- first_write owners
return tonumber(remember(confirm(field, token, 'd', gone) and '1' or '0'))
