-- Find ids without a record.
--
-- KEYS records
-- ARGV ids  LIST  to check
--
-- Returns flags: 1 = no record, 0 = it has one.
-- O(ids)

local flags = {}
for i, id in ipairs(ids) do flags[i] = 1 - redis.call('HEXISTS', records, id) end
return table.concat(flags)
