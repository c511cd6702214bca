-- Put a message behind all others in a list of kombu's Redis transport, once however often the call is made.
--
-- KEYS list, slot
-- ARGV sequence TEXT  number of the call, grows per caller; a lower number than that of the last call is refused
-- ARGV message  TEXT
--
-- Returns 1.
-- O(1)

-- include last_call
-- check list
if last ~= sequence then
  redis.call('LPUSH', list, message)
  remember('')
end
return 1
