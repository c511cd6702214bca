-- Read the last call of this caller, and refuse this one if a later call arrived before it.
--
-- If last == sequence, this call is a repeat, and the script returns outcome.
-- Needs slot, sequence. Defines last: number of the last call, outcome: its outcome, remember: stores and returns the
-- outcome of this call.
local last, outcome = string.match(redis.call('GET', slot) or '', '^(%d+) (.*)$')
if last and tonumber(last) > tonumber(sequence) then return redis.error_reply('LATE_CALL') end
local function remember(result)
  redis.call('SET', slot, sequence .. ' ' .. result, 'PX', 60000)
  return result
end
