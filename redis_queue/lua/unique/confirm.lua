-- Note that the message of an owner was stored until it is due; what it replaces does not run.
--
-- KEYS[1] owners      HASH  task and key -> its owner: see includes/unique_owner.lua
-- KEYS[2] owner_ends  ZSET  task and key -> when its owner ends (ms)
-- KEYS[3] replaced    ZSET  token of a message that must not run -> when it is forgotten (ms)
-- ARGV[1] now         ms; 0 = the server's TIME
-- ARGV[2] field       task, NUL and key
-- ARGV[3] token       of the message
-- ARGV[4] gone        1 = what it replaces was removed from the store by the caller
--
-- Returns 1 = it owns the key, 0 = it does not any more, and does not run.
-- O(log owners)
local owners, owner_ends, replaced = KEYS[1], KEYS[2], KEYS[3]
local now, field, token, gone = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4] == '1'

-- include clock
-- include unique_owner
-- include unique_confirm
redis.call('ZCARD', owner_ends)
redis.call('ZCARD', replaced)
-- As includes/first_write.lua.
redis.call('HDEL', owners, '')
return confirm(field, token, 'd', gone) and 1 or 0
