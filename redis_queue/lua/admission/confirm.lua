-- Note that the message of an owner was stored until it is due; what it replaces does not run.
--
-- KEYS owners, owner_ends, replaced
-- ARGV now    TIME  0 = the server's clock
-- ARGV field  TEXT  task, NUL and key
-- ARGV token  TEXT  of the message
-- ARGV gone   FLAG  1 = what it replaces was removed from the store by the caller
--
-- Returns 1 = it owns the key, 0 = it no longer owns it, and does not run.
-- O(log owners)

-- include clock, unique_owner, unique_confirm
-- check owner_ends, replaced
-- first_write owners
return confirm(field, token, 'd', gone) and 1 or 0
