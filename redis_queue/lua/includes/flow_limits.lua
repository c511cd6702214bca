-- Keep count of the places and rates of flows.
--
-- Needs now, config, running, rates, backlog, flags, root, offers, offer. Defines rules: the limits of each flow: places,
-- places of a key, ms between two starts and burst, the same of a key, whether keys have weights, the key of what is set
-- for single keys (false = none), limits: places, ms between two starts and burst of each flow or key, has_place: whether
-- a place is free, offer_again: offers those places of a list that are still free, place_of: flow and key as one text,
-- admits: tells whether a flow, or a key of it, admits a ring or group now, which waits if not, use: takes a place of a
-- flow and of its key, leave: notes that a message left its list, used, used_until, taken_places, taken_keys: what was
-- used, save: writes that.
local rules = setmetatable({}, {__index = function(known, flow)
  local found = {string.match(redis.call('HGET', config, flow) or '', '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) ')}
  for i = 1, 7 do found[i] = tonumber(string.match(found[i] or '', '^%d+%.?%d*$') or '') or false end
  if redis.call('HEXISTS', flags, flow) == 1 then found[1] = 0 end
  local of_keys = root .. 'rules:' .. flow
  found[8] = redis.call('EXISTS', of_keys) == 1 and of_keys
  known[flow] = found
  return found
end})
local limits = setmetatable({}, {__index = function(known, place)
  local flow, key = string.match(place, '^([^%z]*)%z?(.*)$')
  local rule, each = rules[flow], key == '' and 0 or 1
  local found = {rule[1 + each], rule[3 + 2 * each], rule[4 + 2 * each]}
  local of_keys = each == 1 and rule[8]
  local set = of_keys and redis.pcall('HGET', of_keys, key) or ''
  local texts = {string.match(type(set) == 'string' and set or '', '^(%S+) (%S+) (%S+) (%S+)')}
  for i = 1, 3 do
    if texts[i] and texts[i] ~= '=' then found[i] = tonumber(string.match(texts[i], '^%d+%.?%d*$') or '') or false end
  end
  if texts[4] == '1' then found[1] = 0 end
  known[place] = found
  return found
end})
local used = setmetatable({}, {__index = function(known, place)
  local count = tonumber(redis.call('HGET', running, place) or 0) or 0
  known[place] = count
  return count
end})
local used_until = setmetatable({}, {__index = function(known, place)
  local at = tonumber(redis.call('ZSCORE', rates, place) or 0)
  known[place] = math.max(now, at)
  return known[place]
end})
local function has_place(place)
  local most = limits[place][1]
  return not most or used[place] < most
end
local function offer_again(offered)
  local still = {}
  for _, place in ipairs(offered) do
    redis.call('ZREM', offers, place)
    if has_place(place) then still[#still + 1] = place end
  end
  offer(still)
end
local function place_of(flow, key) return key == '' and flow or flow .. '\0' .. key end
local function admits(flow, key, entry, queue)
  local place = place_of(flow, key)
  local gap, burst = limits[place][2], limits[place][3]
  if not has_place(place) then
    local blocked = root .. 'blocked:' .. place
    redis.call('ZADD', blocked, string.format('%.0f', now), entry)
    return false
  end
  if not gap then return true end
  -- No more than the burst is ever used up: after a rise of the rate, this holds for what was used before.
  burst = burst or 1
  if used_until[place] > now + burst * gap then
    used_until[place] = now + burst * gap
    redis.call('ZADD', rates, string.format('%.3f', used_until[place]), place)
  end
  local at = used_until[place] - (burst - 1) * gap
  if at <= now then return true end
  local timers = root .. 'timers:' .. queue
  redis.call('ZADD', timers, string.format('%.3f', at), entry)
  return false
end
local taken_places, taken_keys = {}, {}
local function use(flow, key)
  for each = 0, key == '' and 0 or 1 do
    local place = each == 0 and flow or place_of(flow, key)
    local gap = limits[place][2]
    used[place] = used[place] + 1
    taken_places[place] = true
    if gap then used_until[place] = used_until[place] + gap end
  end
end
local function leave(flow, key)
  taken_keys[flow] = taken_keys[flow] or {}
  taken_keys[flow][key] = (taken_keys[flow][key] or 0) + 1
end
local function save()
  local past = redis.call('ZRANGEBYSCORE', rates, '-inf', string.format('%.0f', now), 'LIMIT', 0, 100)
  if #past > 0 then redis.call('ZREM', rates, unpack(past)) end
  local numbers, times = {}, {}
  for place in pairs(taken_places) do
    numbers[#numbers + 1], numbers[#numbers + 2] = place, used[place]
    local at = rawget(used_until, place)
    if at then times[#times + 1], times[#times + 2] = string.format('%.3f', at), place end
  end
  if #numbers > 0 then redis.call('HSET', running, unpack(numbers)) end
  if #times > 0 then redis.call('ZADD', rates, unpack(times)) end
  for flow, of_keys in pairs(taken_keys) do
    local keys, sum, names = root .. 'keys:' .. flow, 0, {}
    for key, number in pairs(of_keys) do
      sum = sum + number
      if key ~= '' then names[#names + 1] = key end
    end
    local waiting, gone = {}, {}
    for i, number in ipairs(#names > 0 and redis.call('ZMSCORE', keys, unpack(names)) or {}) do
      local left = (tonumber(number) or 0) - of_keys[names[i]]
      if left > 0 then
        waiting[#waiting + 1], waiting[#waiting + 2] = string.format('%.0f', left), names[i]
      else
        gone[#gone + 1] = names[i]
      end
    end
    if #waiting > 0 then redis.call('ZADD', keys, unpack(waiting)) end
    if #gone > 0 then redis.call('ZREM', keys, unpack(gone)) end
    if redis.call('HINCRBY', backlog, flow, -sum) <= 0 then redis.call('HDEL', backlog, flow) end
  end
end
