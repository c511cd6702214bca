-- What workers do with messages that wait in groups, and what sweeps return: the models of flows and of unique tasks.
--
-- of: lease: ms; queues: names; group: takes an id and returns the arguments that name its group, and its message;
-- id_in: takes a message or a record and returns its id; started, returned, settled: take what is known, an id, and the
-- state after it or the tag, and return what is known then; settled_by: takes what is known and an id, returns the tag.
return function(kit, names, of)
  local changed, counted = kit.changed, kit.counted
  local VISIBLE, EMPTY, worker = 3600000, {}, {}
  names.index, names.unacked, names.lease_ends = 'unacked_index', 'unacked', 'lease_ends'
  names.line, names.listener = 'line', 'listener'
  worker.root = string.sub(names.config, 1, -7)

  -- Returns what a key holds.
  function worker.data(state, name)
    local found = state.keys[name]
    return found and found.data or EMPTY
  end
  function worker.size(state, name)
    local found = state.keys[name]
    return found and found.size or 0
  end
  local data = worker.data
  local function route(queue) return '"", "' .. queue .. '"' end
  local function plain(client) return counted(client) end
  local function tag_of(mark, number) return mark .. string.format('%03d', number) end

  -- Each model ignores signals, which only count.
  worker.ignored = {}
  for _, queue in ipairs(of.queues) do worker.ignored[worker.root .. 'signal:' .. queue] = true end

  local function settled(known, held, missing)
    local lost = kit.set(missing)
    for _, tag in ipairs(kit.sorted(held)) do
      if not lost[tag] then known = of.settled(known, held[tag].id, tag) end
    end
    return known
  end
  -- Whether it was told wrong which tags were in flight; a repeated call finds none.
  local function lies(state, held, missing)
    local lost = kit.set(missing)
    for tag, message in next, held do
      local is_wrong = not lost[tag] or message.ends > state.elapsed
      if is_wrong and of.settled_by(state.known, message.id) ~= tag then
        return message.id .. ': its settling was told wrong'
      end
    end
  end
  local function missing_in(reply) return {unpack(reply, 7, 6 + reply[6])} end
  -- Calls visit with the number from 1 and the id of each message in the reply of a take.
  local function each_taken(reply, visit)
    for i = 8 + reply[6], #reply, 2 do visit((i - 6 - reply[6]) / 2, of.id_in(reply[i])) end
  end
  local function taken(known, reply, state)
    each_taken(reply, function(_, id) known = of.started(known, id, state) end)
    return known
  end

  -- Who settled does so again; a worker returns the messages of a fetch without a reply.
  function worker.failed(client, one)
    local held = {}
    for tag, message in next, client.held do
      if one.tag ~= tag then held[tag] = changed(message, {over = (one.gives_up or message.over) and true or false}) end
    end
    return {held = held, unread = one.once and one.tag, found = client.found and {}}
  end

  -- How many clients hold a message, as far as they know.
  function worker.holders(state, id)
    local count = 0
    for _, client in ipairs(state.clients) do
      for tag, message in next, client.held do
        local is_held = message.id == id and not message.over and kit.holds(client, tag, state.elapsed)
        if is_held then count = count + 1 end
      end
    end
    return count
  end

  -- As LeasedQoS.restore_by_tag: it reads the record, and settles what has none.
  local function restore(add, state, label, tag, last, ended, got)
    local record = data(state, names.unacked)[tag]
    if not record then return add(label, 'admission/settle', {}, {tag}, nil, got) end
    local id = of.id_in(record)
    local named = changed(of.group(id, state), {tag = tag, record = record, last = last, ended = ended})
    return add(label, 'admission/restore', named, {}, function(known, reply)
      return reply == 1 and of.returned(known, id) or known
    end, got)
  end

  -- Adds the call that a sweeper has to make next, if any; its found: tags, and whether each goes behind the others.
  local function returning(client, add, state)
    -- As LeasedQoS.return_fetch.
    for number = 2, 1, -1 do
      local tag = client.unread and tag_of(client.unread, number)
      local is_recorded = tag and data(state, names.unacked)[tag]
      if is_recorded then return restore(add, state, 'returns the fetch', tag, 0, 0, plain) end
    end
    -- As LeasedQoS._sweep: the oldest one last.
    local found = client.found and client.found[#client.found]
    local label = found and 'returns ' .. found.tag
    return found and restore(add, state, label, found.tag, found.last, 1 - found.last, function(before)
      return counted(before, {found = {unpack(before.found, 1, #before.found - 1)}})
    end)
  end
  local function expired(add, got)
    return add('sweeps', 'broker/expired', {timeout = VISIBLE, limit = 500}, {}, nil, got)
  end
  -- Adds the calls of a sweeper; returns whether it may do something else.
  function worker.sweeps(client, add, state)
    if returning(client, add, state) then return false end
    -- What finds nothing changes nothing.
    if state.keys[names.unacked] then
      expired(add, function(before, reply)
        local found = {}
        for i, tag in ipairs(reply) do found[i] = {tag = tag, last = 0} end
        return counted(before, {found = found})
      end)
    end
    return true
  end

  local function take(add, label, queues, limit, mark, tags, ran, got)
    local more = {unpack(tags)}
    for _, queue in ipairs(queues) do more[#more + 1], more[#more + 2] = queue, route(queue) end
    return add(label, 'admission/take', {
      limit = limit, at_once = limit, tag = mark, channel = 'channel', turn = 0, settled = #tags, lease = of.lease,
    }, more, ran, got)
  end
  -- Adds the calls of a worker that takes up to each of limits messages; some: whether any wait for it. taken: takes
  -- what is known, the reply, the limit and the state, and returns what is known then.
  function worker.works(client, add, state, limits, some, looked)
    local tags, held, over = kit.sorted(client.held), client.held, false
    if returning(client, add, state) or (#tags == 0 and not some) then return end
    for _, tag in ipairs(tags) do over = over or held[tag].over end
    for _, settles in ipairs(#tags == 0 and {false} or over and {true} or {false, true}) do
      for _, limit in ipairs(limits) do
        local mark = 'flow-' .. kit.fresh(client, '') .. '-'
        local label, ended = (settles and 'settles and takes ' or 'takes ') .. limit, settles and tags or {}
        local one = take(add, label, client.queues, limit, mark, ended, function(known, reply, after)
          known = taken(settles and settled(known, held, missing_in(reply)) or known, reply, after)
          return looked and looked(known, reply, limit, after) or known
        end, function(before, reply, after)
          local now_held = settles and {} or changed(before.held, {})
          each_taken(reply, function(number, id)
            now_held[tag_of(mark, number)] = {id = id, ends = after.elapsed + of.lease, score = reply[1]}
          end)
          local wrong = settles and lies(after, held, missing_in(reply)) or nil
          return counted(before, {held = now_held, unread = false}), wrong
        end)
        one.once, one.tag, one.gives_up = true, mark, settles
      end
    end
    if #tags == 0 then return end
    add('settles', 'admission/settle', {}, tags, function(known, reply) return settled(known, held, reply) end,
      function(before, reply, after) return counted(before, {held = {}}), lies(after, held, reply) end).gives_up = true
    if over then return end
    local tag = tags[1]
    if of.renews then
      local named = {lease = of.lease, signature = string.byte(client.name) + client.life}
      add('renews', 'broker/renew', named, kit.held(client, 'score'), nil, function(before, reply, after)
        local still, wrong = {}, nil
        for name, message in next, before.held do
          still[name] = changed(message, {ends = after.elapsed + of.lease, score = reply[1]})
        end
        for i = 2, #reply do
          if before.held[reply[i]].ends > after.elapsed then wrong = reply[i] .. ': its lease was told lost' end
          still[reply[i]] = nil
        end
        return counted(before, {held = still}), wrong
      end)
    end
    if held[tag].ends > state.elapsed then
      local one = restore(add, state, 'gives back', tag, 1, 0, function(before)
        return counted(before, {held = changed(before.held, {[tag] = false})})
      end)
      one.gives_up, one.tag = true, tag
    end
  end

  -- Lets all that can be taken end, in up to rounds turns, in which a lease ends; in each, begins is called with a
  -- function that calls and one that returns a message. Returns what is wrong.
  function worker.drain(state, run, call, rounds, lease, check, begins)
    local function got() end
    local function now(...) return run(call(...)) end
    local function returns(tag, last) restore(now, state, '', tag, last, 1 - last, got) end
    for round = 1, rounds do
      local passed, mark, held = round == 1 and 300000 or lease + 1, 'flow-Z' .. round .. '-', {}
      state.now, state.elapsed = state.now + passed, state.elapsed + passed
      if begins then begins(now, returns, mark) end
      for _, tag in ipairs(expired(now, got)) do returns(tag, 0) end
      local function ran(known, reply) return taken(known, reply, state) end
      local reply = take(now, '', of.queues, 10, mark, {}, ran, got)
      each_taken(reply, function(number, id) held[tag_of(mark, number)] = {id = id} end)
      local wrong = check(state)
      if wrong then return wrong end
      local tags = kit.sorted(held)
      if #tags > 0 then
        now('', 'admission/settle', {}, tags, function(known, missing) return settled(known, held, missing) end, got)
      elseif not (state.keys[names.unacked] or state.keys[names.backlog]) then
        return
      end
    end
  end
  return worker
end
