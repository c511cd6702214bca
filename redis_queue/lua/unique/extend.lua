-- Keep the key of a message that waits in the store for as long after its new due time as after the one before.
--
-- KEYS[1] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[2] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[3] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- ARGV[1] now         ms; 0 = the server's TIME
-- ARGV[2] field       task, NUL and key
-- ARGV[3] token       of the message
-- ARGV[4] due         when it is due (ms)
-- ARGV[5] ttl         ms for which it is kept after that
--
-- Returns 1 = done, 0 = it does not own the key, or does not wait in the store.
-- O(log owners)
local owners, owner_ends, replaced = KEYS[1], KEYS[2], KEYS[3]
local now, field, token, due, ttl = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

-- include clock
-- include unique_owner
redis.call('ZCARD', owner_ends)
redis.call('ZCARD', replaced)
-- As includes/first_write.lua.
redis.call('HDEL', owners, '')
local found, before, state, _, id = owner(field)
if found ~= token or before ~= '-' or state ~= 'd' then return 0 end
ttl = math.max(0, due - now) + ttl
own(field, token, '-', 'd', string.format('%.0f', ttl), id, now + ttl)
return 1
