-- Make dead letters of entries that have been due for too long.
--
-- KEYS meta, waiting, errors, dead
-- ARGV now         TIME   0 = the server's clock
-- ARGV older_than  MS     that an entry may be overdue
-- ARGV limit       COUNT  most entries
-- ARGV reason      TEXT   kept with each
--
-- Returns how many.
-- O(limit * log waiting)

local MAX_REASON = 8000
-- include clock
if #reason > MAX_REASON then return redis.error_reply('ERR reason: must be at most ' .. MAX_REASON .. ' bytes') end
-- check meta, errors, dead
local ids = redis.call('ZRANGEBYSCORE', waiting, '-inf', string.format('(%.0f', now - older_than), 'LIMIT', 0, limit)
if #ids == 0 then return 0 end
local scores, reasons = {}, {}
for _, id in ipairs(ids) do
  scores[#scores + 1], scores[#scores + 2] = string.format('%.0f', now), id
  reasons[#reasons + 1], reasons[#reasons + 2] = id, reason
end
-- first_write errors
redis.call('ZADD', dead, unpack(scores))
redis.call('HSET', errors, unpack(reasons))
redis.call('HINCRBY', meta, 'dead', #ids)
redis.call('ZREM', waiting, unpack(ids))
return #ids
