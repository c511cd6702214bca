-- Read the last call of this caller, and refuse one that arrived after a later call of the same caller.
--
-- A script returns outcome if last == sequence: then this call is a repeat.
-- Needs slot, sequence. Defines last: number of the last call, outcome: its outcome, remember: stores and returns the
-- outcome of this call.
local last, outcome = string.match(redis.call('GET', slot) or '', '^(%d+) (.*)$')
if last and tonumber(last) > tonumber(sequence) then return redis.error_reply('LATE_CALL') end
local function remember(result)
  redis.call('SET', slot, sequence .. ' ' .. result, 'PX', 60000)
  return result
end
