-- Let what waits for free places get ready, those that have waited longest first, a bounded number in each call.
--
-- What gets ready may be unable to use its place: a rate is used up, its queue is paused or has no workers. So a place
-- stays in offers until nothing waits for it, or until admission/take.lua, which offers it to some more each time, finds that
-- it is no longer free.
--
-- Needs root, get_ready. Defines offers: the key of the places that are offered, offer: takes a list of places, and
-- notes those for which more wait.
local offers = root .. 'offers'
local function offer(places)
  local several, room = {}, 50
  for i, place in ipairs(places) do several[i] = root .. 'blocked:' .. place end
  if #several == 0 or redis.call('EXISTS', unpack(several)) == 0 then return end
  local last = tonumber(redis.call('ZRANGE', offers, -1, -1, 'WITHSCORES')[2] or 0)
  for i, place in ipairs(places) do
    local blocked = several[i]
    local found = redis.call('ZRANGE', blocked, 0, math.max(0, room - 1))
    room = room - #found
    if #found > 0 then redis.call('ZREM', blocked, unpack(found)) end
    for _, entry in ipairs(found) do get_ready(entry) end
    if redis.call('EXISTS', blocked) == 1 then redis.call('ZADD', offers, string.format('%.0f', last + i), place) end
  end
end
