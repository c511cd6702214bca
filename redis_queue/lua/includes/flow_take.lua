-- Take messages of rings, in memory: what is recorded is written afterwards.
--
-- Needs now, lease, root, tag, turn, limit, oldest, rules, admits, use, leave, start, MAX_CHECKS, MAX_BYTES. Defines text: the
-- time (s), count: taken messages, bytes: their size, looks: groups that were looked at, messages: number of the queue and
-- message of each, fields, scores, ends, places: of their records, keys_owned: what their tags own, record: adds one,
-- weight_of: turns of a key for one of another, take: takes the next one of a ring (name, number of the queue, queue,
-- route, flow of the queue, task, key); false if none may be taken now, take_in_turns: takes those of such rings.
local text, count, bytes, looks = string.format('%.3f', now / 1000), 0, 0, 0
local messages, fields, scores, ends, places, keys_owned = {}, {}, {}, {}, {}, {}
local function record(group, message, number, route, key)
  count, bytes = count + 1, bytes + #message
  local name = tag .. string.format('%03d', count)
  fields[2 * count - 1], fields[2 * count] = name, '[' .. message .. ', ' .. route .. ']'
  scores[2 * count - 1], scores[2 * count] = text, name
  ends[2 * count - 1], ends[2 * count] = string.format('%.3f', (now + lease) / 1000), name
  places[2 * count - 1], places[2 * count] = name, group
  messages[2 * count - 1], messages[2 * count] = number, message
  if key then keys_owned[#keys_owned + 1], keys_owned[#keys_owned + 2] = name, key end
end
local function weight_of(flow, key)
  local weights = root .. 'weights:' .. flow
  local found = rules[flow][7] and redis.pcall('HGET', weights, key)
  return type(found) == 'string' and tonumber(found) or 1
end
local function take(row)
  local name, number, queue, route, of, task, ring = unpack(row)
  local open_rings = root .. 'open:' .. queue
  local open = admits(of, '', name, queue) and (task == '' or admits(task, '', name, queue))
  while open and looks < MAX_CHECKS do
    looks = looks + 1
    local group, at = unpack(redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES'))
    if not group then break end
    local of_task, of_queue = string.match(group, '%z([^%z]*)%z([^%z]*)$')
    local list = root .. 'list:' .. group
    local admitted = of_task and (of_queue == '' or admits(of, of_queue, group, queue))
    admitted = admitted and (of_task == '' or admits(task, of_task, group, queue))
    local weight = admitted and weight_of(of, of_queue) * (task == '' and 1 or weight_of(task, of_task))
    local element = admitted and redis.call('RPOP', list)
    if element then
      leave(of, of_queue)
      if task ~= '' then leave(task, of_task) end
      local message, key = start(element)
      if message then
        record(group, message, number, route, key)
        use(of, of_queue)
        if task ~= '' then use(task, of_task) end
      end
      if redis.call('EXISTS', list) == 1 then
        local turn_at = message and at + 1 / math.max(0.001, weight) or at
        redis.call('ZADD', ring, string.format('%.6f', turn_at), group)
      else
        redis.call('ZREM', ring, group)
        redis.call('ZREM', oldest, group)
        if redis.call('EXISTS', ring) == 0 then redis.call('ZREM', open_rings, name) end
      end
      if message then return true end
    else
      redis.call('ZREM', ring, group)
    end
  end
  if looks < MAX_CHECKS then redis.call('ZREM', open_rings, name) end
  return false
end
local function take_in_turns(open)
  local turned, by = {}, #open > 1 and math.floor(turn % #open) or 0
  for i = 1, #open do turned[i] = open[(i + by - 1) % #open + 1] end
  while #turned > 0 do
    local still = {}
    for _, row in ipairs(turned) do
      if count < limit and bytes < MAX_BYTES and take(row) then still[#still + 1] = row end
    end
    turned = still
  end
end
