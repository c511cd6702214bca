-- Free the places of messages that are no longer in flight.
--
-- Needs held, running, look_again. Defines free: takes a list of tags.
local function free(freed)
  if #freed == 0 then return end
  local places = {}
  for _, group in ipairs(redis.call('HMGET', held, unpack(freed))) do
    local queue, task, of_task, of_queue =
      string.match(group or '', '^%d%z([^%z]*)%z([^%z]*)%z([^%z]*)%z([^%z]*)$')
    if queue then
      queue = 'queue:' .. queue
      places[queue] = (places[queue] or 0) + 1
      if of_queue ~= '' then
        local place = queue .. '\0' .. of_queue
        places[place] = (places[place] or 0) + 1
      end
      if task ~= '' then
        places[task] = (places[task] or 0) + 1
        if of_task ~= '' then
          local place = task .. '\0' .. of_task
          places[place] = (places[place] or 0) + 1
        end
      end
    end
  end
  if next(places) then redis.call('HDEL', held, unpack(freed)) end
  for place, number in pairs(places) do
    if redis.call('HINCRBY', running, place, -number) <= 0 then redis.call('HDEL', running, place) end
    look_again(place)
  end
end
