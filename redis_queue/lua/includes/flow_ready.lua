-- Let the next worker look at a ring of groups, or at one group, again: it may have a message that can be taken.
--
-- Needs config, which begins the names of all keys of flows. Defines root: that beginning, changed: the queues of what
-- is ready now, get_ready: takes a ring or a group, signal: takes a queue, whose listening workers are notified.
local root, changed = string.sub(config, 1, -7), {}
local function get_ready(entry)
  local name, keys = string.match(entry, '^(%d%z[^%z]*%z[^%z]*)(.*)$')
  if not name then return end
  local queue = string.match(name, '^%d%z([^%z]*)')
  local ring, list, open_rings = root .. 'ring:' .. name, root .. 'list:' .. entry, root .. 'open:' .. queue
  if keys ~= '' then
    if redis.call('EXISTS', list) == 0 then return end
    -- Behind each group that waits for its first turn: one that comes back often does not pass them.
    local first = tonumber(redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES')[2] or 0)
    redis.call('ZADD', ring, 'NX', string.format('%.6f', first + 1), entry)
  elseif redis.call('EXISTS', ring) == 0 then
    return
  end
  redis.call('ZADD', open_rings, string.sub(name, 1, 1), name)
  changed[queue] = true
end
local function signal(queue)
  local signals = root .. 'signal:' .. queue
  -- Rarely: a queue with fewer signals in a day is idle, and its workers look by themselves.
  if redis.call('INCR', signals) % 64 == 1 then redis.call('EXPIRE', signals, 86400) end
end
