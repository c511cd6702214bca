-- Store an entry until it is due.
--
-- Needs records, waiting. Defines store_entry: takes an id, a due time and a record; returns an error, or nil.
local function store_entry(id, due, record)
  redis.call('HSET', records, id, record)
  local placed = redis.pcall('ZADD', waiting, due, id)
  if type(placed) == 'number' then return nil end
  -- A permission is missing: a repeated call would take the record for a stored entry.
  redis.call('HDEL', records, id)
  return placed
end
