-- Let what has waited longest for a place get ready.
--
-- Needs root, get_ready. Defines looked: the places that were looked at, look_again: takes a place, pass_on: the same for
-- one more, if what had a place there cannot use it.
local looked = {}
local function look_again(place)
  local blocked = root .. 'blocked:' .. place
  if looked[place] then return end
  looked[place] = true
  -- More than there is room for: some may wait for another place as well, or in a queue without workers.
  local found = redis.call('ZRANGE', blocked, 0, 49)
  if #found > 0 then redis.call('ZREM', blocked, unpack(found)) end
  for _, entry in ipairs(found) do get_ready(entry) end
end
local function pass_on(place)
  local blocked = root .. 'blocked:' .. place
  local entry = redis.call('ZRANGE', blocked, 0, 0)[1]
  if not entry then return end
  redis.call('ZREM', blocked, entry)
  get_ready(entry)
end
