-- Prepare to take messages out of the lists of their groups otherwise than as a worker, and keep count of it.
--
-- Needs config, which begins the names of all keys of flows, oldest, backlog, owners, owner_ends, replaced. Defines
-- root: that beginning, GROUP: the pattern of a group, is_group: tells whether a text is one, forget: lets a ring or a
-- group wait for nothing, shrunk: takes a group and the number of messages that were taken out; returns whether it has
-- none left.
-- check oldest, backlog, owners, owner_ends, replaced
-- first_write config
local root = string.sub(config, 1, -7)
local GROUP = '^(%d%z([^%z]+)%z([^%z]*))%z([^%z]*)%z([^%z]*)$'
local function is_group(text) return string.find(text, GROUP) ~= nil end
-- What has no message left waits neither for a turn nor for a time nor for a place.
local function forget(entry, queue, places)
  local timers = root .. 'timers:' .. queue
  redis.call('ZREM', timers, entry)
  for _, place in ipairs(places) do
    local blocked = root .. 'blocked:' .. place
    redis.call('ZREM', blocked, entry)
  end
end
local function shrunk(group, gone)
  local name, queue, task, of_task, of_queue = string.match(group, GROUP)
  local list, ring = root .. 'list:' .. group, root .. 'ring:' .. name
  local of_ring, of_group = {}, {}
  for flow, key in pairs({['queue:' .. queue] = of_queue, [task] = of_task}) do
    local keys = root .. 'keys:' .. flow
    if flow ~= '' then
      if gone > 0 and redis.call('HINCRBY', backlog, flow, -gone) <= 0 then redis.call('HDEL', backlog, flow) end
      of_ring[#of_ring + 1] = flow
    end
    if key ~= '' then
      if gone > 0 and tonumber(redis.call('ZINCRBY', keys, -gone, key)) <= 0 then redis.call('ZREM', keys, key) end
      of_group[#of_group + 1] = flow .. '\0' .. key
    end
  end
  if redis.call('EXISTS', list) == 1 then return false end
  redis.call('ZREM', oldest, group)
  redis.call('ZREM', ring, group)
  forget(group, queue, of_group)
  if redis.call('EXISTS', ring) == 0 then
    local open_rings = root .. 'open:' .. queue
    redis.call('ZREM', open_rings, name)
    forget(name, queue, of_ring)
  end
  return true
end
