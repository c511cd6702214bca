-- Count the messages in lists of kombu's Redis transport, and tell when the oldest one was sent.
--
-- The headers of a message are behind its body; only the end of a large one is searched.
--
-- KEYS unacked
-- ARGV limit  COUNT  most records in flight that are read; of more, only the number is returned
-- ARGV lists  LIST   the lists
--
-- Returns {number in flight, the ends of their records, ...} as one list, then for each list its length (-1: not a
-- list), and of its oldest message the ms when it was sent and its ISO 8601 due time ("" if unknown, or after 4 MiB).
-- O(lists + limit)

local BUDGET, TAIL, RECORD, LARGE = 4194304, 8192, 600, 65536
local spent = 0
local held = {redis.call('HLEN', unacked)}
if held[1] <= limit then
  for _, tag in ipairs(redis.call('HRANDFIELD', unacked, math.max(0, limit))) do
    local size = redis.call('HSTRLEN', unacked, tag)
    if size <= LARGE and spent < BUDGET then
      held[#held + 1] = string.sub(redis.call('HGET', unacked, tag) or '', -RECORD)
      spent = spent + size
    end
  end
end
local found = {held}
for _, list in ipairs(lists) do
  local length = redis.pcall('LLEN', list)
  local sent, due = '', ''
  if type(length) ~= 'number' then
    length = -1
  elseif length > 0 and spent < BUDGET then
    local message = redis.call('LINDEX', list, -1)
    spent = spent + #message
    message = string.sub(message, -TAIL)
    sent = string.match(message, '"redis_queue_sent": ?(%d+)') or ''
    due = string.match(message, '"redis_queue_eta": ?"([^"\\]+)"') or ''
  end
  found[#found + 1] = length
  found[#found + 1] = sent
  found[#found + 1] = due
end
return found
