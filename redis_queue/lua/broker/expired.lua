-- Find messages in flight to return to their queues.
--
-- Their leases ended, or workers without leases hold them for longer than the visibility timeout of kombu. A lease that
-- ended before its message was taken is forgotten: a worker without leases took it.
--
-- KEYS index, lease_ends
-- ARGV now      TIME   0 = the server's clock
-- ARGV timeout  MS     visibility timeout of kombu
-- ARGV limit    COUNT  most messages of each kind, up to 500
--
-- Returns delivery tags, the oldest first.
-- O(limit * log index)

local MAX_TAGS = 500
-- include clock
limit = math.max(0, math.min(limit, MAX_TAGS))
local before, text = string.format('%.3f', (now - timeout) / 1000), string.format('%.3f', now / 1000)
local unheld = redis.call('ZRANGEBYSCORE', index, 0, before, 'LIMIT', 0, limit)
local ended = redis.call('ZRANGEBYSCORE', lease_ends, 0, text, 'LIMIT', 0, limit)
local found, forgotten = {}, {}
for i, score in ipairs(#unheld > 0 and redis.call('ZMSCORE', lease_ends, unpack(unheld)) or {}) do
  if not score then found[#found + 1] = unheld[i] end
end
for i, taken in ipairs(#ended > 0 and redis.call('ZMSCORE', index, unpack(ended)) or {}) do
  local lease_end = taken and tonumber(redis.call('ZSCORE', lease_ends, ended[i]))
  if taken and tonumber(taken) <= lease_end then
    found[#found + 1] = ended[i]
  else
    forgotten[#forgotten + 1] = ended[i]
  end
end
if #forgotten > 0 then redis.call('ZREM', lease_ends, unpack(forgotten)) end
return found
