-- Flows: a producer, two workers that also renew and give back, a sweeper that also purges, and an operator.
--
-- What is promised: a message that was sent is in one place until it is settled, and then in none; places, backlog and
-- limits are what the messages in flight and the waiting ones say; nobody else holds a message before its lease ends;
-- messages of a group start in order, those of a rate in time, and none while it is paused; a worker is told of what
-- could start; what waits is found again; a call tells what it did; and all is settled in the end, and leaves nothing.

local LEASE, GAP = 1000, 1000
local RULES = {['queue:a'] = '- 1 - - - - - k', sync = '1 - 1000 1 - - - -'}
local SHARED, RAISED = 'queue:a\0x', '= 2 = = = = = ='
-- Of each message: its group, its ring, the places of the ring and of the group, the key that waits with it.
local FACTS = {}
for id, at in next, {m1 = {'a', '', 'x'}, m2 = {'a', '', 'x'}, m3 = {'a', 'sync', 'x'}, m4 = {'b', 'sync', ''}} do
  local queue, task, key = unpack(at)
  local ring, of_queue = table.concat({'0', queue, task}, '\0'), 'queue:' .. queue
  FACTS[id] = {
    named = {step = '0', queue = queue, task = task, of_task = '', of_queue = key, message = id},
    ring = ring, group = ring .. '\0\0' .. key, queue = queue, task = task, key = key,
    wide = task == '' and {of_queue} or {of_queue, task}, keyed = key == '' and {} or {of_queue .. '\0' .. key},
  }
end

return function(kit, names, worker)
  local changed, counted, numbered = kit.changed, kit.counted, kit.numbered
  local work = worker(kit, names, {
    lease = LEASE, queues = {'a', 'b'}, renews = true,
    group = function(id) return FACTS[id].named end,
    id_in = function(text) return string.match(text, '^%[?(m%d)') end,
    started = function(known, id, state)
      local is_sync, wrong = FACTS[id].task == 'sync', known.wrong
      local early = id == 'm2' and known.sent.m1 and not known.started.m1 and not known.done.m1
      if early then wrong = 'm2: started before m1' end
      if is_sync and known.paused then wrong = id .. ': started while it is paused' end
      if is_sync and known.at and state.elapsed - known.at < GAP then wrong = id .. ': started too soon' end
      return changed(known, {
        started = changed(known.started, {[id] = true}), at = is_sync and state.elapsed or known.at, wrong = wrong,
      })
    end,
    returned = function(known) return known end,
    settled = function(known, id, tag) return changed(known, {done = changed(known.done, {[id] = tag})}) end,
    settled_by = function(known, id) return known.done[id] end,
  })
  local root, data = work.root, work.data
  local function hash(values) return {kind = 'hash', size = #kit.sorted(values), run = 0, data = values} end

  local model = {
    limits = {faults = 2, ticks = 2, late = 1, steps = {LEASE + 1, -90000}},
    ignored = work.ignored,
    -- Workers declare the flows of their app when they start.
    keys = {[names.config] = hash(RULES), [names.declared] = hash(RULES), [names.flags] = hash({[''] = '1'})},
    -- half: places at which nobody has looked since they were changed.
    known = {sent = {}, started = {}, done = {}, half = {}},
    clients = {
      {name = 'A', life = 0, calls = 5, queues = {'a'}, held = {}},
      {name = 'B', life = 0, calls = 5, queues = {'b', 'a'}, held = {}},
      {name = 'P', life = 0, calls = 4, send = {'m1', 'm2', 'm3', 'm4'}, held = {}},
      {name = 'S', life = 0, calls = 5, found = {}, held = {}},
      {name = 'O', life = 0, calls = 5, plan = {'raise', 'pause', 'resume'}, held = {}},
    },
  }
  function model.restarted(client)
    return {
      name = client.name, life = client.life + 1, calls = client.calls - 1, queues = client.queues, held = {},
      found = client.found and {}, send = client.send and {}, plan = client.plan and {},
    }
  end
  -- After an error, what the call did is unknown.
  function model.failed(client, one)
    return counted(client, changed(work.failed(client, one), {
      send = client.send and {unpack(client.send, 2)}, plan = client.plan and {unpack(client.plan, one.plan or 1)},
    }))
  end

  local function limit_of(known, place)
    if place == 'sync' then return 1 end
    return place == SHARED and (known.raised and 2 or 1) or math.huge
  end
  local function has_place(state, place)
    local used = tonumber(data(state, names.running)[place] or 0)
    return used < limit_of(state.known, place) and not (place == 'sync' and state.known.paused)
  end
  -- What is known after a worker of queues took fewer messages than it could.
  local function looked(queues)
    return function(known, reply, limit, state)
      local is_full = (#reply - 6 - reply[6]) / 2 == limit
      if is_full or reply[2] == 1 or next(known.half) then return known end
      for id, fact in next, FACTS do
        local may = fact.queue == queues[1] or fact.queue == queues[2]
        may = may and state.keys[root .. 'list:' .. fact.group]
        for _, place in ipairs(fact.wide) do may = may and has_place(state, place) end
        for _, place in ipairs(fact.keyed) do may = may and has_place(state, place) end
        may = may and (fact.task == '' or (data(state, names.rates).sync or 0) <= state.now)
        if may then return changed(known, {wrong = id .. ': could start, and a worker was told of nothing'}) end
      end
      return known
    end
  end

  -- As Flows._change, which looks again after each change; a person repeats what was cut off.
  local function configure(add, step, got)
    local paused, place = step == 'pause' and '1' or '0', step == 'raise' and SHARED or 'sync'
    local named = {flow = 'sync', declared_now = '', set = '', flag = 'sync', paused = paused, forget = 0}
    if step == 'raise' then named = changed(named, {flow = 'queue:a', set = RAISED, flag = '"", "a"', paused = ''}) end
    return add(step .. 's', 'admission/configure', named, {}, function(known)
      return changed(known, {
        half = changed(known.half, {[place] = true}), raised = known.raised or step == 'raise',
        paused = step == 'pause' or (step == 'raise' and known.paused),
      })
    end, got(place))
  end
  local function look(add, place, got)
    return add('looks', 'admission/reconsider', {limit = 0, places = 1}, {place}, function(known)
      return changed(known, {half = changed(known.half, {[place] = false})})
    end, got)
  end
  local function operate(client, add)
    if client.look then
      look(add, client.look, function(before) return counted(before, {look = false}) end)
      return
    end
    for at = 1, math.min(2, #client.plan) do
      configure(add, client.plan[at], function(place)
        return function(before) return counted(before, {plan = {unpack(before.plan, at + 1)}, look = place}) end
      end).plan = at + 1
    end
  end

  local function purge(client, add, state)
    local group, list = FACTS.m1.group, root .. 'list:' .. FACTS.m1.group
    if not state.keys[list] then return end
    add('purges', 'admission/purge', numbered(client, {limit = 10}), {group, '', ''}, function(known, reply, after)
      local done, stays, count = changed(known.done, {}), {}, 0
      for _, record in next, data(after, names.unacked) do stays[string.sub(record, 2, 3)] = true end
      for _, id in ipairs(data(after, list)) do stays[id] = true end
      for id in next, known.sent do
        local is_gone = FACTS[id].group == group and not known.done[id] and not stays[id]
        if is_gone then done[id], count = 'purged', count + 1 end
      end
      return tonumber(string.match(reply, '^%d+')) == count and changed(known, {done = done}) or known
    end, function(before) return counted(before) end)
  end

  function model.calls(client, call, state)
    local calls = {}
    local function add(...)
      calls[#calls + 1] = call(...)
      return calls[#calls]
    end
    if client.calls == 0 then return calls end
    if client.queues then
      work.works(client, add, state, {1, 2}, state.keys[names.backlog], looked(client.queues))
    elseif client.found then
      if work.sweeps(client, add, state) then purge(client, add, state) end
    elseif client.plan then
      operate(client, add)
    elseif client.send[1] then
      local id = client.send[1]
      add('sends ' .. id, 'admission/send', numbered(client, changed(FACTS[id].named, {is_new = 1})), {
        'queue:a', RULES['queue:a'], 'sync', RULES.sync,
      }, function(known) return changed(known, {sent = changed(known.sent, {[id] = true})}) end, function(before, reply)
        return counted(before, {send = {unpack(before.send, 2)}}), reply ~= 1 and id .. ': was not sent' or nil
      end)
    end
    return calls
  end

  local function differs(state, name, expected)
    local count = #kit.sorted(expected)
    for member, value in next, data(state, name) do
      count = count - 1
      if tonumber(value) ~= expected[member] then return true end
    end
    return count ~= 0
  end
  local function add_to(counts, first, second)
    for _, names_of in ipairs({first, second}) do
      for _, name in ipairs(names_of) do counts[name] = (counts[name] or 0) + 1 end
    end
  end
  -- Whether a ring or a group waits for one of places, and will be found when it is free.
  local function waits(state, entry, queue, places)
    if data(state, root .. 'timers:' .. queue)[entry] then return true end
    for _, place in ipairs(places) do
      local is_found = not has_place(state, place) or state.known.half[place] or data(state, names.offers)[place]
      if is_found and data(state, root .. 'blocked:' .. place)[entry] then return true end
    end
  end
  local function is_found(state, fact)
    if waits(state, fact.group, fact.queue, fact.keyed) then return true end
    if not data(state, root .. 'ring:' .. fact.ring)[fact.group] then return false end
    return data(state, root .. 'open:' .. fact.queue)[fact.ring] or waits(state, fact.ring, fact.queue, fact.wide)
  end

  function model.check(state)
    local known, count, running, backlog, keys, groups = state.known, {}, {}, {}, {}, 0
    if known.wrong then return known.wrong end
    for tag, record in next, data(state, names.unacked) do
      local id = string.sub(record, 2, 3)
      local fact = FACTS[id]
      add_to(count, {id}, {})
      add_to(running, fact.wide, fact.keyed)
      if data(state, names.held)[tag] ~= fact.group then return id .. ': has no place' end
      local is_leased = data(state, names.index)[tag] and data(state, names.lease_ends)[tag]
      if not is_leased then return id .. ': has no lease' end
    end
    for _, name in ipairs({names.held, names.index, names.lease_ends}) do
      local is_equal = work.size(state, name) == work.size(state, names.unacked)
      if not is_equal then return name .. ': has others than those in flight' end
    end
    for first, fact in next, FACTS do
      -- The first two share a group.
      local list = data(state, first ~= 'm2' and root .. 'list:' .. fact.group or '')
      for _, id in ipairs(list) do
        if FACTS[id].group ~= fact.group then return id .. ': is in another group' end
        add_to(count, {id}, {})
        add_to(backlog, fact.wide, {})
        add_to(keys, fact.key ~= '' and {fact.key} or {}, {})
      end
      if list[1] then
        groups = groups + 1
        if not is_found(state, fact) then return list[1] .. ': is forgotten' end
        if not data(state, names.oldest)[fact.group] then return list[1] .. ': its age is unknown' end
      end
    end
    for id in next, FACTS do
      local expected = known.sent[id] and not known.done[id] and 1 or 0
      if (count[id] or 0) ~= expected then return id .. ': is in ' .. (count[id] or 0) .. ' places' end
      if work.holders(state, id) > 1 then return id .. ': has two holders' end
    end
    for place, number in next, running do
      if number > limit_of(known, place) then return place .. ': is over its limit' end
    end
    if differs(state, names.running, running) then return 'places in use are counted wrong' end
    if differs(state, names.backlog, backlog) then return 'the backlog is counted wrong' end
    if differs(state, root .. 'keys:queue:a', keys) then return 'what waits of keys is counted wrong' end
    if work.size(state, names.oldest) ~= groups then return 'a group without messages has an age' end
  end

  function model.drain(state, run, call)
    local function add(...) return run(call(...)) end
    local function nothing() end
    configure(add, 'resume', function() return nothing end)
    look(add, 'sync', nothing)
    look(add, SHARED, nothing)
    local wrong = work.drain(state, run, call, 6, LEASE, model.check)
    if wrong then return wrong end
    for id in next, state.known.sent do
      if not state.known.done[id] then return id .. ': is never settled' end
    end
    for name in next, state.keys do
      local part = string.sub(name, #root + 1)
      local stays = string.find(' config declared overrides flags rates ', ' ' .. part .. ' ', 1, true)
      if not (stays or string.find(part, '^signal:') or string.find(name, '^slot:')) then return name .. ': is left' end
    end
  end
  return model
end
