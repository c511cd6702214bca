-- Put a message into the list of its group: behind the others, or before them.
--
-- Needs now, step, queue, task, of_task, of_queue, root, oldest, backlog, get_ready, changed. Defines group: its text,
-- push: takes a message and whether it comes first.
local group = table.concat({step, queue, task, of_task, of_queue}, '\0')
if not string.find(group, '^%d%z[^%z]+%z[^%z]*%z[^%z]*%z[^%z]*$') then return redis.error_reply('ERR invalid group') end
local function push(element, first)
  local list = root .. 'list:' .. group
  local name = table.concat({step, queue, task}, '\0')
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
