-- Check the lengths of marks, texts that are searched for in records.
--
-- Defines is_long: tells whether a mark is longer than any that a client makes, LONG_MARK: the error for it.
local LONG_MARK = redis.error_reply('ERR mark: must be at most 128 bytes')
local function is_long(mark) return #mark > 128 end
