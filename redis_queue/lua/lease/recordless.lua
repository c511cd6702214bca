-- Find ids without a record.
--
-- KEYS[1] records    HASH  id -> record
-- ARGV[...] ids      to check
--
-- Returns flags: 1 = no record, 0 = it has one.
-- O(ids)
local records = KEYS[1]
local ids = {unpack(ARGV, 1)}

local flags = {}
for i, id in ipairs(ids) do flags[i] = 1 - redis.call('HEXISTS', records, id) end
return table.concat(flags)
