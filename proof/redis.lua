-- A model of Redis for LuaJIT: the commands of redis_queue, and its scripts.
--
-- It is as simple as it can be: a sorted set is sorted when it is read, and the time is what the caller says it is. It
-- is trusted only as far as tests/proof/test_model.py compares it with servers, command by command.
--
-- A state is a table of name -> object, and an object is never changed by a run after the one that made it: a caller
-- may keep tables of states, which share the objects that are equal.

local floor, format, find, match, sub = math.floor, string.format, string.find, string.match, string.sub
local concat, sort, insert, remove = table.concat, table.sort, table.insert, table.remove

local OK = {ok = 'OK'}
local WRITES, NEEDS_MEMORY = {}, {}
for name in string.gmatch(
  'HDEL ZREM LTRIM LREM RPOP LPOP DEL UNLINK EXPIRE PEXPIRE PERSIST ZREMRANGEBYSCORE SREM', '%S+'
) do
  WRITES[name] = true
end
for name in string.gmatch(
  'HSET HSETNX HINCRBY ZADD ZINCRBY LPUSH RPUSH LSET SET INCR INCRBY SADD RPOPLPUSH LMOVE', '%S+'
) do
  WRITES[name], NEEDS_MEMORY[name] = true, true
end

local function fail(text) error({err = text}, 0) end
local function text_of(value)
  if type(value) == 'string' then return value end
  if type(value) == 'number' then return format('%.17g', value) end
  fail('ERR Lua redis lib command arguments must be strings or integers')
end
local function integer(value, why)
  local number = match(value or '', '^%-?%d+$') and tonumber(value)
  if number and (value == '0' or not find(value, '^%-?0')) then return number end
  fail(why or 'ERR value is not an integer or out of range')
end
local function float(value, why)
  local number = find(value, '^[-+.%dienfINFEX]+$') and tonumber(value)
  if not number or number ~= number then fail(why or 'ERR value is not a valid float') end
  return number
end
local function shown(score)
  if score == math.huge then return 'inf' elseif score == -math.huge then return '-inf' end
  for digits = 15, 17 do
    local text = format('%.' .. digits .. 'g', score)
    if tonumber(text) == score then return text end
  end
end
-- A bound of a range: its number, and whether it is excluded.
local function bound(value)
  local excluded = sub(value, 1, 1) == '('
  return float(excluded and sub(value, 2) or value, 'ERR min or max is not a float'), excluded
end
local function pattern_of(glob)
  local text = string.gsub(glob, '[%^%$%(%)%%%.%+%-]', '%%%0')
  text = string.gsub(text, '%%%-', '-')
  text = string.gsub(string.gsub(text, '%*', '.*'), '%?', '.')
  return '^' .. text .. '$'
end
local function sorted_pairs(values)
  local names = {}
  for name in next, values do names[#names + 1] = name end
  sort(names, function(a, b)
    if type(a) == type(b) then return a < b end
    return type(a) == 'number'
  end)
  local at = 0
  return function()
    at = at + 1
    return names[at], values[names[at]]
  end
end

-- What a script sees: what Redis lets it see; pairs has one order.
local LIBRARIES = {
  math = math, string = string, table = table, tonumber = tonumber, tostring = tostring, type = type, next = next,
  ipairs = ipairs, pairs = sorted_pairs, unpack = unpack, select = select, error = error, rawget = rawget,
  rawset = rawset, setmetatable = setmetatable, getmetatable = getmetatable, assert = assert, pcall = pcall,
}

-- Returns a server. keys: name -> object {kind, data, size, ends, run}; now: the time in microseconds; run: a number that
-- grows when a state is kept; full: whether the memory is used up; wrote: whether the last call wrote; told: takes a channel and a message that is
-- published, listeners: a channel, and both return how many listen.
return function()
  local function nobody() return 0 end
  local server = {keys = {}, now = 0, run = 1, full = false, told = nobody, listeners = nobody}
  local has_written = true

  local function open(name, kind)
    local found = server.keys[name]
    if not found then return nil end
    if found.ends and found.ends <= server.now / 1000 then
      server.keys[name] = nil
      return nil
    end
    if kind and found.kind ~= kind then fail('WRONGTYPE Operation against a key holding the wrong kind of value') end
    return found
  end
  local function own(name, kind)
    local found = open(name, kind)
    if not found then
      found = {kind = kind, size = 0, run = server.run, data = {}}
      server.keys[name] = found
    elseif found.run ~= server.run then
      local copy = {kind = found.kind, size = found.size, ends = found.ends, run = server.run, data = found.data}
      if found.kind ~= 'string' then
        copy.data = {}
        for key, value in next, found.data do copy.data[key] = value end
      end
      found = copy
      server.keys[name] = found
    end
    found.order, found.hash = nil, nil
    return found
  end
  local function dropped(name, object)
    if object.size == 0 then server.keys[name] = nil end
  end
  -- Members in order: by score, then by bytes.
  local function ordered(object)
    if not object.order then
      local order, scores = {}, object.data
      for member in next, scores do order[#order + 1] = member end
      sort(order, object.kind == 'zset' and function(a, b)
        local one, two = scores[a], scores[b]
        return one < two or (one == two and a < b)
      end or nil)
      object.order = order
    end
    return object.order
  end
  local function removed(name, kind, fields)
    if not open(name, kind) then return 0 end
    local data, count, object = open(name, kind).data, 0, nil
    for i = 1, #fields do
      if data[fields[i]] ~= nil then
        object = object or own(name, kind)
        data = object.data
        data[fields[i]] = nil
        count = count + 1
      end
    end
    if object then
      object.size = object.size - count
      dropped(name, object)
    end
    return count
  end
  local function put(object, field, value)
    local is_new = object.data[field] == nil
    if is_new then object.size = object.size + 1 end
    object.data[field] = value
    return is_new
  end
  -- Opens a key and returns it, and the places from 1 of a range from 0, of which negative numbers count from the end.
  local function span(name, kind, first, last)
    first, last = integer(first), integer(last)
    local found = open(name, kind)
    local size = found and (kind == 'string' and #found.data or found.size) or 0
    if first < 0 then first = math.max(0, size + first) end
    if last < 0 then last = size + last end
    return found, first + 1, math.min(last + 1, size)
  end
  local function ranged(list, first, last)
    local found = {}
    for at = first, last do found[#found + 1] = list[at] end
    return found
  end
  local function with_scores(object, members, wanted)
    if not wanted then return members end
    local found = {}
    for _, member in ipairs(members) do
      found[#found + 1], found[#found + 2] = member, shown(object.data[member])
    end
    return found
  end
  local function between(name, low, high, reverse, offset, count)
    local least, without_least = bound(low)
    local most, without_most = bound(high)
    local object = open(name, 'zset')
    local order, found = object and ordered(object) or {}, {}
    if offset < 0 then return found end
    for i = 1, #order do
      local member = order[reverse and #order + 1 - i or i]
      local score = object.data[member]
      local within = (score > least or (score == least and not without_least))
        and (score < most or (score == most and not without_most))
      if within then
        if offset > 0 then
          offset = offset - 1
        elseif count ~= 0 then
          found[#found + 1], count = member, count - 1
        end
      end
    end
    return found
  end
  local function expires(name, ms)
    local found = open(name)
    if not found then return 0 end
    if ms <= 0 then
      server.keys[name] = nil
    else
      own(name, found.kind).ends = floor(server.now / 1000) + ms
    end
    return 1
  end
  local function pushed(name, elements, at_left)
    local list = own(name, 'list')
    for i = 1, #elements do
      if at_left then insert(list.data, 1, elements[i]) else list.data[list.size + 1] = elements[i] end
      list.size = list.size + 1
    end
    return list.size
  end
  local function popped(name, at_left)
    if not open(name, 'list') then return false end
    local list = own(name, 'list')
    local element = remove(list.data, at_left and 1 or list.size)
    list.size = list.size - 1
    dropped(name, list)
    return element
  end
  local function incremented(name, by)
    local found = open(name, 'string')
    local number = integer(found and found.data or '0') + by
    local object = own(name, 'string')
    object.data, object.size = format('%.0f', number), 1
    return number
  end
  local function scanned(names, rest)
    local pattern, found = nil, {}
    for i = 1, #rest, 2 do
      if string.upper(rest[i]) == 'MATCH' then pattern = pattern_of(rest[i + 1]) end
    end
    for _, name in ipairs(names) do
      if not pattern or find(name, pattern) then found[#found + 1] = name end
    end
    return found
  end

  local C = {}
  server.commands = C

  for name, kind in next, {HLEN = 'hash', LLEN = 'list', SCARD = 'set', ZCARD = 'zset'} do
    C[name] = function(key)
      local found = open(key, kind)
      return found and found.size or 0
    end
  end
  for name, kind in next, {HKEYS = 'hash', SMEMBERS = 'set'} do
    C[name] = function(key)
      local found = open(key, kind)
      return found and ranged(ordered(found), 1, found.size) or {}
    end
  end
  function C.TYPE(name)
    local found = open(name)
    return {ok = found and found.kind or 'none'}
  end
  function C.EXISTS(...)
    local count = 0
    for i = 1, select('#', ...) do count = count + (open((select(i, ...))) and 1 or 0) end
    return count
  end
  function C.DEL(...)
    local count = 0
    for i = 1, select('#', ...) do
      local name = select(i, ...)
      if open(name) then server.keys[name], count = nil, count + 1 end
    end
    return count
  end
  C.UNLINK = C.DEL
  function C.EXPIRE(name, seconds) return expires(name, integer(seconds) * 1000) end
  function C.PEXPIRE(name, ms) return expires(name, integer(ms)) end
  function C.PERSIST(name)
    local found = open(name)
    if not found or not found.ends then return 0 end
    own(name, found.kind).ends = nil
    return 1
  end
  function C.PTTL(name)
    local found = open(name)
    if not found then return -2 end
    return found.ends and math.max(0, found.ends - floor(server.now / 1000)) or -1
  end
  function C.TTL(name)
    local ms = C.PTTL(name)
    return ms < 0 and ms or floor((ms + 500) / 1000)
  end
  function C.SCAN(_, ...)
    local names = {}
    for name in sorted_pairs(server.keys) do
      if open(name) then names[#names + 1] = name end
    end
    return {'0', scanned(names, {...})}
  end
  function C.DBSIZE() return #C.SCAN('0')[2] end
  function C.FLUSHDB()
    server.keys = {}
    return OK
  end
  C.FLUSHALL = C.FLUSHDB
  function C.TIME() return {format('%.0f', floor(server.now / 1e6)), format('%.0f', server.now % 1e6)} end

  function C.GET(name)
    local found = open(name, 'string')
    return found and found.data or false
  end
  function C.STRLEN(name)
    local found = open(name, 'string')
    return found and #found.data or 0
  end
  -- Unlike ranges of lists, an end before the beginning is the beginning.
  function C.GETRANGE(name, first, last)
    local found, from, to = span(name, 'string', first, last)
    if not found or (find(first, '^%-') and find(last, '^%-') and tonumber(first) > tonumber(last)) then return '' end
    return sub(found.data, from, math.max(1, to))
  end
  function C.SET(name, value, ...)
    local options, at, ends, only_new, only_old, keeps = {...}, 1, nil, false, false, false
    while options[at] do
      local option = string.upper(options[at])
      if option == 'NX' then only_new = true
      elseif option == 'XX' then only_old = true
      elseif option == 'KEEPTTL' then keeps = true
      elseif (option == 'EX' or option == 'PX') and options[at + 1] then
        ends, at = integer(options[at + 1]) * (option == 'EX' and 1000 or 1), at + 1
        if ends <= 0 then fail("ERR invalid expire time in 'set' command") end
      else
        fail('ERR syntax error')
      end
      at = at + 1
    end
    local before = open(name)
    if (only_new and before) or (only_old and not before) then return false end
    server.keys[name] = {
      kind = 'string', data = value, size = 1, run = server.run,
      ends = ends and floor(server.now / 1000) + ends or keeps and before and before.ends or nil,
    }
    return OK
  end
  function C.INCR(name) return incremented(name, 1) end
  function C.INCRBY(name, by) return incremented(name, integer(by)) end

  function C.HGET(name, field)
    local found = open(name, 'hash')
    return found and found.data[field] or false
  end
  function C.HMGET(name, ...)
    local found, values = open(name, 'hash'), {}
    for i = 1, select('#', ...) do values[i] = found and found.data[(select(i, ...))] or false end
    return values
  end
  function C.HEXISTS(name, field) return C.HGET(name, field) and 1 or 0 end
  function C.HSTRLEN(name, field) return #(C.HGET(name, field) or '') end
  function C.HGETALL(name)
    local found, rows = open(name, 'hash'), {}
    for _, field in ipairs(C.HKEYS(name)) do
      rows[#rows + 1], rows[#rows + 2] = field, found.data[field]
    end
    return rows
  end
  function C.HVALS(name)
    local values = {}
    for i, field in ipairs(C.HKEYS(name)) do values[i] = C.HGET(name, field) end
    return values
  end
  function C.HSCAN(name, _, ...)
    local rows = {}
    for _, field in ipairs(scanned(C.HKEYS(name), {...})) do
      rows[#rows + 1], rows[#rows + 2] = field, C.HGET(name, field)
    end
    return {'0', rows}
  end
  -- Not random: the first ones.
  function C.HRANDFIELD(name, count, with_values)
    local fields = C.HKEYS(name)
    if not count then return fields[1] or false end
    local most = integer(count)
    local rows = {}
    for i = 1, most < 0 and #fields > 0 and -most or math.min(most, #fields) do
      local field = fields[(i - 1) % #fields + 1]
      rows[#rows + 1] = field
      if with_values then rows[#rows + 1] = C.HGET(name, field) end
    end
    return rows
  end
  function C.HSET(name, ...)
    local count, added = select('#', ...), 0
    if count == 0 or count % 2 == 1 then fail("ERR wrong number of arguments for 'hset' command") end
    local object = own(name, 'hash')
    for i = 1, count, 2 do
      local field, value = select(i, ...)
      if put(object, field, value) then added = added + 1 end
    end
    return added
  end
  function C.HSETNX(name, field, value)
    if C.HGET(name, field) then return 0 end
    return C.HSET(name, field, value)
  end
  function C.HDEL(name, ...) return removed(name, 'hash', {...}) end
  function C.HINCRBY(name, field, by)
    local step = integer(by)
    local number = integer(C.HGET(name, field) or '0', 'ERR hash value is not an integer') + step
    put(own(name, 'hash'), field, format('%.0f', number))
    return number
  end

  function C.LINDEX(name, place)
    local found = open(name, 'list')
    if not found then return false end
    local at = integer(place)
    return found.data[at < 0 and found.size + at + 1 or at + 1] or false
  end
  function C.LRANGE(name, first, last)
    local found, from, to = span(name, 'list', first, last)
    return found and ranged(found.data, from, to) or {}
  end
  function C.LPOS(name, element)
    local found = open(name, 'list')
    for at = 1, found and found.size or 0 do
      if found.data[at] == element then return at - 1 end
    end
    return false
  end
  function C.LPUSH(name, ...) return pushed(name, {...}, true) end
  function C.RPUSH(name, ...) return pushed(name, {...}, false) end
  function C.LPOP(name) return popped(name, true) end
  function C.RPOP(name) return popped(name, false) end
  function C.RPOPLPUSH(name, target)
    if not open(name, 'list') then return false end
    open(target, 'list')
    local element = popped(name, false)
    if element then pushed(target, {element}, true) end
    return element
  end
  function C.LSET(name, place, element)
    local found = open(name, 'list')
    if not found then fail('ERR no such key') end
    local at = integer(place)
    at = at < 0 and found.size + at + 1 or at + 1
    if at < 1 or at > found.size then fail('ERR index out of range') end
    own(name, 'list').data[at] = element
    return OK
  end
  function C.LTRIM(name, first, last)
    local found, from, to = span(name, 'list', first, last)
    if not found or (from <= 1 and to >= found.size) then return OK end
    local list = own(name, 'list')
    list.data = ranged(found.data, from, to)
    list.size = #list.data
    dropped(name, list)
    return OK
  end
  function C.LREM(name, count, element)
    local most = integer(count)
    local found = open(name, 'list')
    if not found then return 0 end
    local gone, left, backwards = 0, {}, most < 0
    for i = 1, found.size do
      local value = found.data[backwards and found.size + 1 - i or i]
      if value == element and (most == 0 or gone < math.abs(most)) then gone = gone + 1 else left[#left + 1] = value end
    end
    if gone == 0 then return 0 end
    local list = own(name, 'list')
    list.data, list.size = left, #left
    for i = 1, backwards and floor(#left / 2) or 0 do left[i], left[#left + 1 - i] = left[#left + 1 - i], left[i] end
    dropped(name, list)
    return gone
  end

  function C.SADD(name, ...)
    local object, added = own(name, 'set'), 0
    for i = 1, select('#', ...) do
      if put(object, (select(i, ...)), true) then added = added + 1 end
    end
    return added
  end
  function C.SREM(name, ...) return removed(name, 'set', {...}) end
  function C.SISMEMBER(name, member)
    local found = open(name, 'set')
    return found and found.data[member] and 1 or 0
  end

  function C.ZSCORE(name, member)
    local found = open(name, 'zset')
    local score = found and found.data[member]
    return score and shown(score) or false
  end
  function C.ZMSCORE(name, ...)
    local scores = {}
    open(name, 'zset')
    for i = 1, select('#', ...) do scores[i] = C.ZSCORE(name, (select(i, ...))) end
    return scores
  end
  function C.ZRANK(name, member)
    local found = open(name, 'zset')
    for at, other in ipairs(found and found.data[member] and ordered(found) or {}) do
      if other == member then return at - 1 end
    end
    return false
  end
  function C.ZADD(name, ...)
    local rows, at, flags = {...}, 1, {}
    while rows[at] and find(' NX XX GT LT CH ', ' ' .. string.upper(rows[at]) .. ' ', 1, true) do
      flags[string.upper(rows[at])], at = true, at + 1
    end
    if at > #rows or (#rows - at) % 2 == 0 then fail('ERR syntax error') end
    if flags.NX and flags.XX then fail('ERR XX and NX options at the same time are not compatible') end
    if (flags.NX and (flags.GT or flags.LT)) or (flags.GT and flags.LT) then
      fail('ERR GT, LT, and/or NX options at the same time are not compatible')
    end
    local scores = {}
    for i = at, #rows, 2 do scores[i] = float(rows[i]) end
    local known, object, added, changed = open(name, 'zset'), nil, 0, 0
    for i = at, #rows, 2 do
      local member, score = rows[i + 1], scores[i]
      local before = (object or known) and (object or known).data[member]
      local allowed = not (before and flags.NX) and not (not before and flags.XX)
        and not (before and ((flags.GT and score <= before) or (flags.LT and score >= before)))
      if allowed and before ~= score then
        object = object or own(name, 'zset')
        put(object, member, score)
        if before then changed = changed + 1 else added = added + 1 end
      end
    end
    return flags.CH and added + changed or added
  end
  function C.ZINCRBY(name, by, member)
    local step, found = float(by), open(name, 'zset')
    local score = (found and found.data[member] or 0) + step
    if score ~= score then fail('ERR resulting score is not a number (NaN)') end
    put(own(name, 'zset'), member, score)
    return shown(score)
  end
  function C.ZREM(name, ...) return removed(name, 'zset', {...}) end
  function C.ZCOUNT(name, low, high) return #between(name, low, high, false, 0, -1) end
  function C.ZRANGEBYSCORE(name, low, high, ...)
    local options, at, offset, count, scores = {...}, 1, 0, -1, false
    while options[at] do
      local option = string.upper(options[at])
      if option == 'WITHSCORES' then
        scores, at = true, at + 1
      elseif option == 'LIMIT' and options[at + 2] then
        offset, count, at = integer(options[at + 1]), integer(options[at + 2]), at + 3
      else
        fail('ERR syntax error')
      end
    end
    local members = between(name, low, high, false, offset, count)
    return with_scores(open(name, 'zset'), members, scores)
  end
  function C.ZRANGE(name, first, last, ...)
    local options, at, offset, count, flags = {...}, 1, 0, -1, {}
    while options[at] do
      local option = string.upper(options[at])
      if option == 'LIMIT' and options[at + 2] then
        offset, count, at, flags.LIMIT = integer(options[at + 1]), integer(options[at + 2]), at + 3, true
      elseif option == 'WITHSCORES' or option == 'REV' or option == 'BYSCORE' then
        flags[option], at = true, at + 1
      else
        fail('ERR syntax error')
      end
    end
    if flags.LIMIT and not flags.BYSCORE then
      fail('ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX')
    end
    local members
    if flags.BYSCORE then
      local low, high = first, last
      if flags.REV then low, high = last, first end
      members = between(name, low, high, flags.REV, offset, count)
    else
      local found, from, to = span(name, 'zset', first, last)
      members = {}
      for i = from, to do members[#members + 1] = ordered(found)[flags.REV and found.size + 1 - i or i] end
    end
    return with_scores(open(name, 'zset'), members, flags.WITHSCORES)
  end
  function C.ZREVRANGE(name, first, last, ...)
    if select('#', ...) > 0 then return C.ZRANGE(name, first, last, 'REV', ...) end
    return C.ZRANGE(name, first, last, 'REV')
  end
  function C.ZREMRANGEBYSCORE(name, low, high)
    return removed(name, 'zset', between(name, low, high, false, 0, -1))
  end
  function C.ZSCAN(name, _, ...)
    local found = open(name, 'zset')
    local members = scanned(found and ordered(found) or {}, {...})
    return {'0', with_scores(found, members, true)}
  end

  function C.PUBLISH(channel, message) return server.told(channel, message) end
  function C.PUBSUB(part, ...)
    local found = {}
    if string.upper(part) ~= 'NUMSUB' then fail('ERR unknown subcommand') end
    for i = 1, select('#', ...) do
      local channel = select(i, ...)
      found[#found + 1], found[#found + 2] = channel, server.listeners(channel)
    end
    return found
  end
  function C.PING(text) return text or {ok = 'PONG'} end

  local function call(name, ...)
    local command = C[name] or C[string.upper(name)]
    if not command then fail('ERR unknown command') end
    if server.full and NEEDS_MEMORY[name] and not has_written then
      fail("OOM command not allowed when used memory > 'maxmemory'.")
    end
    has_written = has_written or WRITES[name] or false
    local count = select('#', ...)
    for i = 1, count do
      if type((select(i, ...))) ~= 'string' then
        local words = {...}
        for at = 1, count do words[at] = text_of(words[at]) end
        return command(unpack(words, 1, count))
      end
    end
    return command(...)
  end
  local function refused(reason)
    if type(reason) == 'table' and reason.err then return reason end
    return {err = 'ERR ' .. tostring(reason)}
  end
  local redis = {
    call = call,
    pcall = function(...)
      local good, reply = pcall(call, ...)
      if good then return reply end
      return refused(reply)
    end,
    error_reply = function(text) return {err = text} end,
    status_reply = function(text) return {ok = text} end,
  }

  -- Returns a script: a function that takes its keys and arguments, two tables of texts.
  function server.compile(source, name)
    local made, why = loadstring('local redis, KEYS, ARGV = ... ' .. source, name)
    if not made then error(why) end
    setfenv(made, LIBRARIES)
    return made
  end
  -- A reply as a client gets it: numbers are cut to integers, and a list ends at the first nil.
  local function converted(reply)
    local kind = type(reply)
    if kind == 'number' then return reply < 0 and math.ceil(reply) or floor(reply) end
    if kind == 'boolean' then return reply and 1 or false end
    if kind ~= 'table' then return reply or false end
    if reply.err or reply.ok then return reply end
    local list = {}
    for i = 1, #reply do
      if reply[i] == nil then break end
      list[i] = converted(reply[i])
    end
    return list
  end
  -- Runs a compiled script; an error is returned as {err = text}.
  function server.script(compiled, keys, arguments)
    has_written = false
    local good, reply = pcall(compiled, redis, keys, arguments)
    server.wrote, has_written = has_written, true
    if not good then return refused(reply) end
    return converted(reply)
  end
  -- Runs a command of a client; its arguments are texts.
  function server.command(name, ...)
    has_written = false
    local good, reply = pcall(call, string.upper(name), ...)
    server.wrote, has_written = has_written, true
    if not good then return refused(reply) end
    return reply
  end
  return server
end
