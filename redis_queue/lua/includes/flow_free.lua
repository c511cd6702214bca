-- Free the places of messages that are no longer in flight.
--
-- Needs held, running, offer. Defines free: takes a list of tags.
local function free(freed)
  if #freed == 0 then return end
  local places = {}
  local function count(flow, key)
    local place = key ~= '' and flow .. '\0' .. key
    if flow ~= '' then places[flow] = (places[flow] or 0) + 1 end
    if place then places[place] = (places[place] or 0) + 1 end
  end
  for _, group in ipairs(redis.call('HMGET', held, unpack(freed))) do
    local queue, task, of_task, of_queue =
      string.match(group or '', '^%d%z([^%z]*)%z([^%z]*)%z([^%z]*)%z([^%z]*)$')
    count(queue and 'queue:' .. queue or '', of_queue or '')
    count(task or '', of_task or '')
  end
  if not next(places) then return end
  redis.call('HDEL', held, unpack(freed))
  local names, still, gone = {}, {}, {}
  for place in pairs(places) do names[#names + 1] = place end
  for i, number in ipairs(redis.call('HMGET', running, unpack(names))) do
    local left = (tonumber(number) or 0) - places[names[i]]
    if left > 0 then
      still[#still + 1], still[#still + 2] = names[i], string.format('%.0f', left)
    else
      gone[#gone + 1] = names[i]
    end
  end
  if #still > 0 then redis.call('HSET', running, unpack(still)) end
  if #gone > 0 then redis.call('HDEL', running, unpack(gone)) end
  offer(names)
end
