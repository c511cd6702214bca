-- Take messages of rings, in memory: what is recorded is written afterwards.
--
-- Needs now, root, tag, oldest, rules, admits, use, leave, start, LOOKS. Defines text: the time (s), count: taken
-- messages, bytes: their size, looks: groups that were looked at, messages: number of the queue and message of each,
-- fields, scores, places: of their records, keys_owned: what their tags own, record: adds one, take: takes the next one
-- of a ring; false if none may be taken now.
local text, count, bytes, looks = string.format('%.3f', now / 1000), 0, 0, 0
local messages, fields, scores, places, keys_owned = {}, {}, {}, {}, {}
local function record(group, message, number, route, key)
  count, bytes = count + 1, bytes + #message
  local name = tag .. string.format('%03d', count)
  fields[2 * count - 1], fields[2 * count] = name, '[' .. message .. ', ' .. route .. ']'
  scores[2 * count - 1], scores[2 * count] = text, name
  places[2 * count - 1], places[2 * count] = name, group
  messages[2 * count - 1], messages[2 * count] = number, message
  if key then keys_owned[#keys_owned + 1], keys_owned[#keys_owned + 2] = name, key end
end
local function take(row)
  local name, number, queue, route, of, task, ring = unpack(row)
  local open = admits(of, '', name, queue) and (task == '' or admits(task, '', name, queue))
  while open and looks < LOOKS do
    looks = looks + 1
    local group, at = unpack(redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES'))
    if not group then break end
    local of_task, of_queue = string.match(group, '%z([^%z]*)%z([^%z]*)$')
    local list = root .. 'list:' .. group
    local admitted = of_task and (of_queue == '' or admits(of, of_queue, group, queue))
      and (of_task == '' or admits(task, of_task, group, queue))
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
      local weight = 1
      if rules[of][7] then
        local weights = root .. 'weights:' .. of
        weight = tonumber(redis.call('HGET', weights, of_queue) or 1)
      end
      if redis.call('EXISTS', list) == 1 then
        local turn_at = message and at + 1 / math.max(0.001, weight) or at
        redis.call('ZADD', ring, string.format('%.6f', turn_at), group)
      else
        redis.call('ZREM', ring, group)
        redis.call('ZREM', oldest, group)
        if redis.call('EXISTS', ring) == 0 then
          local open_rings = root .. 'open:' .. queue
          redis.call('ZREM', open_rings, name)
        end
      end
      if message then return true end
    else
      redis.call('ZREM', ring, group)
    end
  end
  local open_rings = root .. 'open:' .. queue
  if looks < LOOKS then redis.call('ZREM', open_rings, name) end
  return false
end
