-- Put a message into the list of its group: behind the others, or before them.
--
-- Needs now, root, oldest, backlog, get_ready, changed. Defines push: takes a group and a message.
local function push(group, element, first)
  local list = root .. 'list:' .. group
  local name, queue, task, of_task, of_queue =
    string.match(group, '^(%d%z([^%z]*)%z([^%z]*))%z([^%z]*)%z([^%z]*)$')
  local ring = root .. 'ring:' .. name
  local count = first and redis.call('RPUSH', list, element) or redis.call('LPUSH', list, element)
  if count == 1 then
    redis.call('ZADD', oldest, string.format('%.0f', now), group)
    get_ready(group)
  elseif redis.call('ZSCORE', ring, group) then
    changed[queue] = true
  end
  for flow, key in pairs({['queue:' .. queue] = of_queue, [task] = of_task}) do
    local keys = root .. 'keys:' .. flow
    if flow ~= '' then redis.call('HINCRBY', backlog, flow, 1) end
    if key ~= '' then redis.call('ZINCRBY', keys, 1, key) end
  end
end
