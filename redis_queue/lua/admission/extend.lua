-- Keep the key of a message that waits in the store for as long after its new due time as after the one before.
--
-- KEYS owners, owner_ends, replaced
-- ARGV now    TIME  0 = the server's clock
-- ARGV field  TEXT  task, NUL and key
-- ARGV token  TEXT  of the message
-- ARGV due    TIME  when it is due
-- ARGV ttl    MS    for which it is kept after that
--
-- Returns 1 = done, 0 = it does not own the key, or does not wait in the store.
-- O(log owners)

-- include clock, unique_owner
-- check owner_ends, replaced
-- first_write owners
local found, before, state, _, id = owner(field)
if found ~= token or before ~= '-' or state ~= 'd' then return 0 end
ttl = math.max(0, due - now) + ttl
own(field, token, '-', 'd', string.format('%.0f', ttl), id, now + ttl)
return 1
