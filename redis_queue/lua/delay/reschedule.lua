-- Change the due time of a waiting entry.
--
-- KEYS[1] waiting    ZSET  id -> due time (ms)
-- KEYS[2] slot       STRING number and outcome of this caller's last call
-- KEYS[3] wake       CHANNEL for an entry that is due earlier than all others
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] id         of the entry
-- ARGV[3] delay      ms from now
-- ARGV[4] due        ms; 0 = use the delay
-- ARGV[5] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
--
-- Returns 1 = changed, 0 = unknown id, or claimed.
-- O(log waiting)
local waiting, slot, wake = KEYS[1], KEYS[2], KEYS[3]
local now, id, delay, due = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local sequence = ARGV[5]

-- include last_call
if last == sequence then return tonumber(outcome) end
-- include clock
if due == 0 then due = now + delay end
-- As includes/first_write.lua.
redis.call('ZREM', waiting, '')
if not redis.call('ZSCORE', waiting, id) then return remember(0) end
-- include wake_dispatcher
-- XX: never add a claimed entry again.
redis.call('ZADD', waiting, 'XX', string.format('%.0f', due), id)
wake_dispatcher(due)
return remember(1)
