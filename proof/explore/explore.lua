-- Visit every state that a few clients of redis_queue can reach, breadth first, and check each.
--
-- A client calls the real scripts, one call at a time. Every call may also lose its reply, and be repeated; be delayed,
-- and be repeated before or after it arrives; or end with the death of its client. Between any two calls, time may pass
-- and the clock of the server may be set. How often is limited, so that there is an end.
--
-- Two states are one if the keys, the clients' knowledge, what is under way and the limits are equal. Only their hashes
-- of 51 bits are kept: among 10^7 states, one is taken for another with a chance of one in 45.

local bit, ffi = require('bit'), require('ffi')
local concat, sort, format, gsub, find = table.concat, table.sort, string.format, string.gsub, string.find

local function hash_of(text)
  local size, one, two = #text, 0x2545F491, 0x811C9DC5
  local words, bytes = ffi.cast('const int32_t *', text), ffi.cast('const uint8_t *', text)
  for i = 0, bit.rshift(size, 2) - 1 do
    one = bit.bxor(one, words[i]) * 0x9E35
    one = bit.bxor(bit.tobit(one), bit.rshift(bit.tobit(one), 13))
    two = bit.bxor(bit.rol(two, 5), words[i]) * 0x6F4B
    two = bit.bxor(bit.tobit(two), bit.rshift(bit.tobit(two), 15))
  end
  for i = size - size % 4, size - 1 do
    one = bit.tobit(bit.bxor(bit.rol(one, 7), bytes[i]) * 0x9E35)
    two = bit.tobit(bit.bxor(bit.rol(two, 5), bytes[i]) * 0x6F4B)
  end
  one, two = bit.bxor(one, bit.rshift(one, 15)), bit.bxor(two, bit.rol(one, 16), size)
  return bit.band(one, 0x7FFFF) * 4294967296 + bit.tobit(two) % 4294967296
end
-- Of the hashes and of their sums, so that two of them are added without a rounding.
local WIDTH = 2 ^ 51

-- Returns a table of texts, numbers, flags and such tables as one text. A call is its label and its arguments.
-- States share most of the tables in them, which are not changed any more: their texts are kept.
local NOT_SHOWN = {hash = true, script = true, keys = true, command = true}
local texts = setmetatable({}, {__mode = 'k'})
local function text_of(value)
  if type(value) ~= 'table' then return tostring(value) end
  if texts[value] then return texts[value] end
  local names, parts = {}, {}
  for name in next, value do
    if type(name) == 'string' then names[#names + 1] = name end
  end
  sort(names)
  for i = 1, #value do parts[i] = text_of(value[i]) end
  for _, name in ipairs(names) do
    if type(value[name]) ~= 'function' and not NOT_SHOWN[name] then
      parts[#parts + 1] = name .. '=' .. text_of(value[name])
    end
  end
  local text = '{' .. concat(parts, ',') .. '}'
  texts[value] = text
  return text
end
-- The same, and tokens without the number of the claim.
local function plain(text) return find(text, '-n', 1, true) and gsub(text, '%d+%-n', 'n') or text end

local function copied(values)
  local copy = {}
  for name, value in next, values do copy[name] = value end
  return copy
end

-- What models share.
local kit = {}
-- Returns a copy of a table with changes; false removes a field.
function kit.changed(values, change)
  local copy = copied(values)
  copy.hash = nil
  for name, value in next, change do copy[name] = value or nil end
  return copy
end
-- A client after one of its calls, which it numbers downwards.
function kit.counted(client, change)
  local copy = kit.changed(client, change or {})
  copy.calls = client.calls - 1
  return copy
end
-- The arguments of a numbered call, and others.
function kit.numbered(client, change)
  local named = copied(change or {})
  named.sequence, named.slot = 100 - client.calls, 'slot:' .. client.name .. client.life
  return named
end
-- A text that no other call of any client has.
function kit.fresh(client, letter) return letter .. client.name .. client.life .. client.calls end
-- Returns the flag of the i-th of several.
function kit.flag(flags, i) return string.sub(flags, i, i) end
-- Returns the fields of a table in order.
function kit.sorted(values)
  local names = {}
  for name in next, values do names[#names + 1] = name end
  sort(names)
  return names
end
-- Returns a table with each of the texts as a field.
function kit.set(texts)
  local found = {}
  for _, text in ipairs(texts) do found[text] = true end
  return found
end
-- Returns what a client holds, each followed by this field of what it knows of it.
function kit.held(client, field)
  local rows = {}
  for i, name in ipairs(kit.sorted(client.held)) do rows[2 * i - 1], rows[2 * i] = name, client.held[name][field] end
  return rows
end
-- Whether a client holds something, as far as it knows: its lease has not ended, and it is not giving it up. Clients
-- count the time that passes; it is theirs that is given, whatever the clock of the server was set to.
function kit.holds(client, name, elapsed)
  local held = client.held[name]
  return held and held.ends > elapsed and not (client.pending and client.pending.gives_up)
end

-- Returns an explorer. scripts: name -> {run = compiled, keys = names, arguments = names}; names: name of a key -> key;
-- make: takes the kit, the names and the worker, see worker.lua, and returns a model: what clients do and what is
-- promised, see queue.lua; ignored: keys that only count.
return function(server, scripts, names, make, worker)
  local model = make(kit, names, worker)
  local explorer = {keys = model.keys or {}, states = 0, transitions = 0, depth = 0}
  local limits, ignored, START = model.limits, model.ignored or {}, 1700000000000

  -- A call: label, script or command, and its keys and arguments; ran: takes what is known of all, the reply and the
  -- state, and returns what is known after it ran; got: takes the client's knowledge, the reply and the state, and
  -- returns its new knowledge, and what is wrong, if anything; once: it is never repeated; gives_up: the caller holds
  -- nothing, whatever the reply.
  local function call(label, name, named, more, ran, got)
    local script, keys, arguments = scripts[name], {}, {}
    if not script then return {label = label, command = name, keys = keys, arguments = more, ran = ran, got = got} end
    for i, key in ipairs(script.keys) do keys[i] = named[key] or names[key] or error(name .. ': no key ' .. key) end
    for i, argument in ipairs(script.arguments) do
      local value = named[argument]
      if value == nil then
        if argument ~= 'now' then error(name .. ': no argument ' .. argument) end
        value = 0
      end
      arguments[i] = type(value) == 'number' and format('%.0f', value) or value
    end
    for _, value in ipairs(more or {}) do
      arguments[#arguments + 1] = type(value) == 'number' and format('%.0f', value) or value
    end
    return {label = label, script = script, keys = keys, arguments = arguments, ran = ran, got = got}
  end

  -- The hash of a key: counters are left out, and tokens are without the number of the claim.
  local function key_hash(name, object)
    if not object.hash then
      local parts = {name}
      if object.kind == 'string' then
        parts[2] = object.data
      elseif object.kind == 'list' then
        for i = 1, object.size do parts[i + 1] = object.data[i] end
      else
        local order = {}
        for member in next, object.data do order[#order + 1] = member end
        sort(order)
        for _, member in ipairs(order) do
          if not (name == names.meta and model.counters[member]) then
            parts[#parts + 1], parts[#parts + 2] = member, object.data[member]
          end
        end
      end
      object.hash = hash_of(plain(concat(parts, '\1')))
    end
    return object.hash
  end
  local hashes = setmetatable({}, {__mode = 'k', __index = function(known, values)
    known[values] = hash_of(plain(text_of(values)))
    return known[values]
  end})
  local function state_hash(state)
    local sum = 0
    for name, object in next, state.keys do
      if not (ignored[name] or (name == names.meta and object.size == 0)) then
        sum = (sum + key_hash(name, object)) % WIDTH
      end
    end
    for i, client in ipairs(state.clients) do
      if not client.hash then client.hash = hash_of(i .. plain(text_of(client))) end
      sum = (sum + client.hash) % WIDTH
    end
    local late = {}
    for i, one in ipairs(state.late) do late[i] = one.client .. one.label .. concat(one.arguments, ',') end
    sort(late)
    late[#late + 1] = concat({state.now, state.elapsed, state.faults, state.ticks}, ' ')
    sum = (sum + hashes[state.known]) % WIDTH
    return (sum + hash_of(concat(late, '\2'))) % WIDTH
  end

  -- Runs a call on the keys of a state, a fresh copy; returns the reply.
  local function run(state, one)
    server.keys, server.now = state.keys, state.now * 1000
    explorer.transitions = explorer.transitions + 1
    local reply
    if one.script then
      reply = server.script(one.script.run, one.keys, one.arguments)
    else
      reply = server.command(one.command, unpack(one.arguments))
    end
    state.keys = server.keys
    if one.ran and not (type(reply) == 'table' and reply.err) then state.known = one.ran(state.known, reply, state) end
    state.heard = {one, reply, state.now}
    return reply
  end
  -- Returns a copy of a state; keys: those of the state if no call is run on the copy, and its time is the same.
  local function following(state, keys)
    return {
      keys = keys or copied(state.keys), clients = copied(state.clients), late = state.late, known = state.known,
      now = state.now, elapsed = state.elapsed, faults = state.faults, ticks = state.ticks, heard = state.heard,
    }
  end
  local function receive(state, number, one, reply)
    local before = state.clients[number]
    local client, wrong
    if type(reply) == 'table' and reply.err then
      -- The caller gets an error, and knows nothing.
      client = model.failed(before, one)
      if reply.err ~= 'unknown' and reply.err ~= 'LATE_CALL' then wrong = one.label .. ': ' .. reply.err end
    else
      client, wrong = one.got(before, reply, state)
    end
    client = copied(client)
    client.pending, client.hash = nil, nil
    state.clients[number] = client
    if wrong then state.wrong = wrong end
  end
  local function with(client, change)
    local copy = copied(client)
    copy.hash = nil
    for name, value in next, change do copy[name] = value end
    return copy
  end

  -- Makes a call in each way: it succeeds, its reply is lost, its client dies, or it is delayed.
  local function attempt(state, number, one, label, visit)
    local client = state.clients[number]
    server.run = server.run + 1
    local after = following(state)
    local reply = run(after, one)
    if state.faults > 0 then
      local lost = following(after, after.keys)
      lost.clients[number] = with(client, {pending = one})
      lost.faults = state.faults - 1
      visit(lost, label .. ', reply lost')
      local died = following(lost, after.keys)
      died.clients[number] = copied(model.restarted(client))
      visit(died, label .. ', died')
    end
    receive(after, number, one, reply)
    visit(after, label)
    if state.faults > 0 and not client.pending and #state.late < limits.late then
      local delayed = following(state, state.keys)
      delayed.faults = state.faults - 1
      delayed.late = copied(state.late)
      delayed.late[#delayed.late + 1] = setmetatable({client = client.name .. ' '}, {__index = one})
      delayed.clients[number] = with(client, {pending = one})
      visit(delayed, label .. ', delayed')
    end
  end
  -- Calls visit(state, label) with each state that follows, or only with the one of the label that is wanted.
  local function expand(state, visit, wanted)
    for number, client in ipairs(state.clients) do
      local name = client.name .. ' '
      local pending = client.pending
      local calls = pending and {not pending.once and pending or nil} or model.calls(client, call, state)
      for _, one in ipairs(calls) do
        local label = name .. (pending and 'again ' or '') .. one.label
        if not wanted or string.sub(wanted, 1, #label) == label then attempt(state, number, one, label, visit) end
      end
      local label = name .. 'gives up'
      if pending and (not wanted or wanted == label) then
        local gave_up = following(state, state.keys)
        receive(gave_up, number, pending, {err = 'unknown'})
        visit(gave_up, label)
      end
    end
    for place, one in ipairs(state.late) do
      local label = one.client .. 'late ' .. one.label
      if not wanted or wanted == label then
        server.run = server.run + 1
        local after = following(state)
        after.late = {}
        for i, other in ipairs(state.late) do
          if i ~= place then after.late[#after.late + 1] = other end
        end
        run(after, one)
        visit(after, label)
      end
    end
    if state.ticks > 0 then
      for _, ms in ipairs(limits.steps) do
        local after = following(state)
        after.now, after.elapsed, after.ticks = state.now + ms, state.elapsed + math.max(0, ms), state.ticks - 1
        visit(after, ms < 0 and format('clock %d ms', ms) or format('%d ms later', ms))
      end
    end
  end

  local function checked(state)
    if state.wrong then return state.wrong end
    server.keys, server.now = state.keys, state.now * 1000
    return model.check(state, server.commands)
  end
  -- Ends all that is under way, without faults, and finishes what waits: returns what stays unfinished.
  local function drain(state)
    server.run = server.run + 1
    state = following(state)
    local before = explorer.transitions
    for number, client in ipairs(state.clients) do
      local one = client.pending
      if one then receive(state, number, one, one.once and {err = 'unknown'} or run(state, one)) end
    end
    for _, one in ipairs(state.late) do run(state, one) end
    state.late = {}
    local wrong = model.drain(state, function(one) return run(state, one) end, call, server.commands)
    explorer.transitions = before
    return wrong
  end

  local function start(faults, ticks)
    local clients = {}
    for i, client in ipairs(model.clients) do clients[i] = copied(client) end
    return {
      keys = copied(model.keys or {}), clients = clients, late = {}, known = model.known, now = START, elapsed = 0,
      faults = faults or limits.faults, ticks = ticks or limits.ticks,
    }
  end

  -- Returns the state after one step, or nothing.
  local function step(state, wanted)
    local found
    expand(state, function(after, label)
      if label == wanted and not found then found = after end
    end, wanted)
    return found
  end

  -- Explores breadth first from one state until all states are visited or most transitions were made. Up to width
  -- states of a depth are kept for the next one; the others are made again, from those that were kept. tell is called
  -- for each depth, with the number of its states. Returns what is wrong and the labels of the shortest path there, or
  -- nothing.
  local function explore_from(first, most, width, tell)
    local seen, parents, labels, kept, chain = {[state_hash(first)] = true}, {0}, {''}, {first}, {}
    local states, depth = 1, 0
    -- The states of one parent follow each other, so most of a path is that of the state before.
    local function made(id, above)
      local last = chain[above]
      if kept[id] then return kept[id] end
      if last and last[1] == id then return last[2] end
      local before = explorer.transitions
      local state = step(made(parents[id], above + 1), labels[id])
      explorer.transitions = before
      chain[above] = {id, state}
      return state
    end
    local front, found, found_at = {1}, nil, nil
    while #front > 0 do
      local next_front, next_kept = {}, {}
      for _, id in ipairs(front) do
        local state, grown = made(id, 1), false
        expand(state, function(after, label)
          grown = true
          -- A wrong reply may lead to a state that was visited.
          local hash = not found and (after.wrong or state_hash(after))
          if found or seen[hash] then return end
          local number = states + 1
          seen[hash], states, explorer.states = true, number, explorer.states + 1
          parents[number], labels[number] = id, label
          next_front[#next_front + 1] = number
          if #next_front <= width then next_kept[number] = after elseif next(next_kept) then next_kept = {} end
          found, found_at = checked(after), number
        end)
        if not found and (not grown or state.faults + state.ticks == 0) then
          found, found_at = drain(state), id
        end
        if found or explorer.transitions >= most then break end
      end
      if found or explorer.transitions >= most then break end
      -- Beyond the width, the kept states are those of the last depth that had fewer.
      if #next_front <= width then kept, chain = next_kept, {} end
      front = next_front
      depth = depth + 1
      explorer.depth = math.max(explorer.depth, depth)
      tell(depth, #front)
    end
    explorer.finished = #front == 0
    if not found then return end
    local path, id = {}, found_at
    while id > 1 do
      table.insert(path, 1, labels[id])
      id = parents[id]
    end
    return found, path
  end

  -- Explores with few faults first: most defects need one at most. Each part makes as many transitions.
  function explorer.explore(most, width, tell)
    for part, budget in ipairs({{0, 1}, {1, 1}, {limits.faults, limits.ticks}}) do
      local found, path = explore_from(start(unpack(budget)), math.ceil(most * part / 3), width, tell)
      if found then return found, path end
    end
  end

  -- Follows labels from the start; returns what is wrong after the last one, and an error for an unknown label.
  function explorer.follow(path)
    local state = start()
    for _, wanted in ipairs(path) do
      local found = step(state, wanted)
      if not found then return 'no such step: ' .. wanted end
      state = found
      local wrong = checked(state)
      if wrong then return wrong end
    end
    return drain(state)
  end

  -- Takes up to length steps that random, which takes a number n and returns one of 1 to n, chooses. Returns the calls
  -- on the way: keys, arguments, reply, script and time of each, and the labels.
  function explorer.wander(length, random)
    local state, made, path = start(), {}, {}
    for _ = 1, length do
      local choices = {}
      state.heard = nil
      expand(state, function(after, label) choices[#choices + 1] = {after, label} end)
      if #choices == 0 then break end
      state, path[#path + 1] = unpack(choices[random(#choices)])
      if state.heard then
        local one, reply, now = unpack(state.heard)
        made[#made + 1] = {one.keys, one.arguments, reply, one.script or one.command, now}
      end
    end
    return made, path
  end
  return explorer
end
