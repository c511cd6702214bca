-- Celery's lists in Redis: two workers with leases fetch, renew, settle and return; both also sweep.
--
-- What is promised: a message is in its list or in flight, once, until it is settled, and then nowhere; nobody else has
-- it before its lease ends; a settlement tells whether it was in time; and all is settled in the end.

local LEASE, LIST, ROUTE, HOUR = 1000, 'celery', '"", "celery"', 3600000

return function(kit, names)
  local changed, counted = kit.changed, kit.counted
  names.index, names.unacked, names.lease_ends = 'unacked_index', 'unacked', 'lease_ends'
  names.line, names.listener, names.flags = 'idle', 'listener', 'flags'
  local list = {kind = 'list', data = {'"m2"', '"m1"'}, size = 2, run = 0}
  local model = {
    counters = {},
    keys = {[LIST] = list},
    limits = {faults = 2, ticks = 3, late = 1, steps = {LEASE + 1, -90000}},
    -- done: message -> the tag that settled it.
    known = {done = {}},
    clients = {
      {name = 'B', life = 0, calls = 5, held = {}, ended = {}},
      {name = 'C', life = 0, calls = 5, held = {}, ended = {}},
    },
  }
  function model.restarted(client)
    return {name = client.name, life = client.life + 1, calls = client.calls - 1, held = {}, ended = {}}
  end
  function model.failed(client, one)
    return counted(client, {held = one.gives_up and {} or client.held, ended = {}})
  end

  -- A lease that the client asked for now, as it counts: from before the call.
  local function settled(tags, held)
    return function(known, missing)
      local lost, done = kit.set(missing), known.done
      for _, tag in ipairs(tags) do
        local message = held[tag].message
        if not lost[tag] and not done[message] then done = changed(done, {[message] = tag}) end
      end
      return changed(known, {done = done})
    end
  end
  local function fetching(client, add)
    local tag = kit.fresh(client, 't') .. '-'
    add('fetches', 'broker/fetch',
      {limit = 1, tag = tag, channel = client.name, missed = '1', turns = '0', width = 1, lease = LEASE},
      {LIST, ROUTE}, nil,
      function(before, reply, after)
        local held = changed(before.held, {})
        for i = 5, #reply, 2 do
          local name = tag .. string.format('%03d', (i - 3) / 2)
          held[name] = {message = reply[i + 1], seen = reply[1], ends = after.elapsed + LEASE}
        end
        return counted(before, {held = held})
      end).once = true
  end
  -- The sweep asks for the tags, then reads each record, then returns the message with the record that it read.
  local function sweeping(client, add)
    local ended = client.ended
    if not ended.tag then
      add('looks for ended leases', 'broker/expired', {timeout = HOUR, limit = 10}, {}, nil,
        function(before, tags) return counted(before, {ended = {tag = tags[1]}}) end)
    elseif not ended.record then
      add('reads ' .. ended.tag, 'HGET', nil, {names.unacked, ended.tag}, nil,
        function(before, record)
          return changed(before, {ended = record and changed(ended, {record = record}) or {}})
        end)
    else
      add('returns ' .. ended.tag, 'broker/restore', {tag = ended.tag, record = ended.record, ended = '1', last = '0'},
        {LIST, string.match(ended.record, '^%[(.-),')}, nil,
        function(before) return counted(before, {ended = {}}) end)
    end
  end

  function model.calls(client, call)
    local calls = {}
    local function add(...)
      calls[#calls + 1] = call(...)
      return calls[#calls]
    end
    if client.calls == 0 then return calls end
    fetching(client, add)
    sweeping(client, add)
    local tags = kit.sorted(client.held)
    if #tags == 0 then return calls end
    local one = add('settles', 'broker/settle', {}, tags, settled(tags, client.held),
      function(before, missing, after)
        local lost, wrong = kit.set(missing), nil
        for _, tag in ipairs(tags) do
          local by = after.known.done[client.held[tag].message]
          if lost[tag] and by == tag and not before.pending then wrong = tag .. ': was settled, and told as lost' end
          if not lost[tag] and by ~= tag then wrong = tag .. ': was told as settled, by ' .. tostring(by) end
        end
        return counted(before, {held = {}}), wrong
      end)
    one.gives_up = true
    local signature = client.name == 'B' and 7 or 8
    add('renews', 'broker/renew', {lease = LEASE, signature = signature}, kit.held(client, 'seen'), nil,
      function(before, reply, after)
        local held = {}
        for _, tag in ipairs(tags) do
          held[tag] = changed(before.held[tag], {seen = reply[1], ends = after.elapsed + LEASE})
        end
        for i = 2, #reply do held[reply[i]] = nil end
        return counted(before, {held = held})
      end)
    return calls
  end

  function model.check(state, C)
    local places = {}
    for _, message in ipairs(C.LRANGE(LIST, '0', '-1')) do places[message] = (places[message] or 0) + 1 end
    local fields = C.HGETALL(names.unacked)
    for i = 1, #fields, 2 do
      local message = string.match(fields[i + 1], '^%[(.-),')
      places[message] = (places[message] or 0) + 1
      if not C.ZSCORE(names.index, fields[i]) then return message .. ': is in flight, and not in the index' end
    end
    if C.ZCARD(names.index) ~= #fields / 2 then return 'a tag without a message' end
    for _, message in ipairs({'"m1"', '"m2"'}) do
      local is_done, count, holders = state.known.done[message], places[message] or 0, 0
      if count ~= (is_done and 0 or 1) then return message .. ': is in ' .. count .. ' places' end
      for _, client in ipairs(state.clients) do
        for tag, held in next, client.held do
          if held.message == message and kit.holds(client, tag, state.elapsed) then holders = holders + 1 end
        end
      end
      if holders > 1 then return message .. ': has two holders' end
    end
  end

  function model.drain(state, run, call, C)
    local got = function() end
    for round = 1, 3 do
      state.now = state.now + (round == 1 and 400000 or 2 * LEASE)
      for _, tag in ipairs(run(call('', 'broker/expired', {timeout = HOUR, limit = 10}, {}, nil, got))) do
        local record = C.HGET(names.unacked, tag)
        run(call('', 'broker/restore', {tag = tag, record = record, ended = '1', last = '0'},
          {LIST, string.match(record, '^%[(.-),')}, nil, got))
      end
      local reply = run(call('', 'broker/fetch', {
        limit = 10, tag = 'z' .. round .. '-', channel = 'Z', missed = '0', turns = '0', width = 1, lease = LEASE,
      }, {LIST, ROUTE}, nil, got))
      local tags, held = {}, {}
      for i = 5, #reply, 2 do
        tags[#tags + 1] = 'z' .. round .. '-' .. string.format('%03d', (i - 3) / 2)
        held[tags[#tags]] = {message = reply[i + 1]}
      end
      if #tags > 0 then run(call('', 'broker/settle', {}, tags, settled(tags, held), got)) end
    end
    for _, message in ipairs({'"m1"', '"m2"'}) do
      if not state.known.done[message] then return message .. ': is never done' end
    end
    return model.check(state, C)
  end
  return model
end
