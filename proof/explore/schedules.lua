-- One schedule: two dispatchers, a person, and workers of an older and of a newer release, which declare it.
--
-- Each dispatcher acts as one that was replaced as the leader and does not know it. What is promised: each due time is
-- sent once, or counted as skipped; a paused, deleted or replaced schedule sends nothing from an older copy; a call
-- tells what it did; the older release never undoes the newer one; and in the end all that was due was sent or counted,
-- and the schedule goes on.

local EVERY, START, LIST, APP = 5000, 1700000000000, 'celery', 'app'

return function(kit, names)
  local changed, counted, numbered = kit.changed, kit.counted, kit.numbered
  -- As State: since is the name of the definition's put, gen that of the last put or pause.
  local function text_of(s)
    return s and table.concat({s.gen, s.since, string.format('%.0f', s.due), s.runs, s.skipped, s.paused}, ' ') or ''
  end
  local function parsed(text)
    local gen, since, due, runs, skipped, paused = string.match(text, '^(%S+) (%S+) (%d+) (%d+) (%d+) (%d)$')
    if not gen then return nil end
    return {
      gen = gen, since = since, due = tonumber(due), runs = tonumber(runs), skipped = tonumber(skipped),
      paused = tonumber(paused),
    }
  end
  local function data(state, name)
    local found = state.keys[name]
    return found and found.data or {}
  end
  local function hash(values) return {kind = 'hash', size = #kit.sorted(values), run = 0, data = values} end
  local FIRST = {gen = 'g', since = 's', due = START, runs = 0, skipped = 0, paused = 0}

  local model = {
    counters = {put = true},
    limits = {faults = 2, ticks = 3, late = 1, steps = {EVERY, -2 * EVERY}},
    keys = {
      [names.schedules] = hash({job = 'd1'}), [names.schedule_states] = hash({job = text_of(FIRST)}),
      [names.schedule_looks] = {kind = 'zset', size = 1, run = 0, data = {job = START}},
      [names.schedule_apps] = hash({[APP] = 'v1'}),
    },
    -- state: of the schedule; first: since -> its first due time; extra: since -> its runs by hand; sent: what each run
    -- was sent as; did: of each life of a client, its last change and the flags; newer: whether d2 is in force.
    known = {state = FIRST, first = {s = START}, extra = {}, sent = {}, did = {}, newer = false},
    clients = {
      {name = 'A', life = 0, calls = 6, found = false},
      {name = 'B', life = 0, calls = 5, found = false},
      {name = 'P', life = 0, calls = 4, found = false},
      {name = 'O', life = 0, calls = 6, version = 'v1', definition = 'd1', found = false},
      {name = 'N', life = 0, calls = 7, version = 'v2', definition = 'd2', found = false},
    },
  }
  -- A release starts again; who lost an answer begins anew.
  local function restarted(client, life)
    return {
      name = client.name, life = life, calls = client.calls - 1, version = client.version,
      definition = client.definition, found = false,
    }
  end
  function model.restarted(client) return restarted(client, client.life + 1) end
  function model.failed(client) return restarted(client, client.life) end

  -- A change of one item, and those that follow it.
  local function item(before, after, more)
    return {
      before = before, after = after, definition = more.definition or '', look = more.look or 'inf',
      id = more.id or '', body = more.id and after.since .. more.id or '', extra = more.extra,
    }
  end
  -- As Runs._step: of d1 the latest run is sent, of d2 all. What a pause left out is skipped.
  local function looked(row, now)
    local state, items, dues = parsed(row.state), {}, {}
    for due = state.due, now, EVERY do dues[#dues + 1] = due end
    local due = state.due + #dues * EVERY
    if state.paused == 1 or #dues == 0 then
      local after = changed(state, {due = due, skipped = state.skipped + #dues, paused = 0})
      return {item(row.state, after, {look = due})}
    end
    local wanted = row.definition == 'd2' and dues or {dues[#dues]}
    local before, skipped = row.state, state.skipped + #dues - #wanted
    for i, one in ipairs(wanted) do
      local after = changed(state, {due = wanted[i + 1] or due, runs = state.runs + i, skipped = skipped})
      items[i] = item(before, after, {look = i < #wanted and now or due, id = string.format('%.0f', one)})
      before = text_of(after)
    end
    return items
  end

  local function applied(known, one, state)
    local before, after = known.state, one.after
    if text_of(before) ~= one.before then state.wrong = 'a change of another state was made' end
    -- If the clock went back before a put, a run with the same name and due time may still wait: it is not replaced.
    local record = data(state, names.records)[one.id]
    if one.body ~= '' and not (record and not string.find(record, one.body, 1, true)) then
      if known.sent[one.body] then state.wrong = one.body .. ': was sent twice' end
      if before.paused == 1 and not one.extra then state.wrong = one.body .. ': was sent while it is paused' end
      known = changed(known, {sent = changed(known.sent, {[one.body] = true})})
    end
    if one.extra then
      known = changed(known, {extra = changed(known.extra, {[after.since] = (known.extra[after.since] or 0) + 1})})
    end
    if one.definition == 'd1' and known.newer then state.wrong = 'the older release has undone the newer one' end
    if one.definition ~= '' and not known.first[after.since] then
      known = changed(known, {first = changed(known.first, {[after.since] = after.due})})
    end
    return changed(known, {state = after or false, newer = known.newer or one.definition == 'd2'})
  end
  -- Adds a call of schedules/change; done: takes the client and whether all items were done.
  local function change(add, client, label, items, done)
    local app, versions = client.version and APP or '', client.checked or ''
    local more, mine, who = {}, kit.fresh(client, 'c'), client.name .. client.life
    for i, one in ipairs(items) do
      local record = string.format('- 0 %d %d\n', #one.body, #LIST) .. LIST .. one.body
      local row = {'job', one.before, text_of(one.after), one.definition, one.look, '', one.id, START, record}
      for j, value in ipairs(row) do more[9 * i - 9 + j] = value end
    end
    local named = numbered(client, {limit = 10, most = 2, app = app, versions = versions})
    return add(label, 'schedules/change', named, more, function(known, reply, state)
      local flags, last = reply[2], known.did[who]
      if last and last.mine == mine then return known end
      for i, one in ipairs(items) do
        if kit.flag(flags, i) == '1' then known = applied(known, one, state) end
      end
      return changed(known, {did = changed(known.did, {[who] = {mine = mine, flags = flags}})})
    end, function(before, reply, state)
      local wrong = state.known.did[who].flags ~= reply[2]
      local after = done(before, not string.find(reply[2], '[^1]'))
      return counted(before, after), wrong and 'a change was told wrong: ' .. reply[2] or nil
    end)
  end
  local function read(add, label, limit, listed, got)
    return add(label, 'schedules/read', {limit = limit}, listed, nil, got)
  end
  local function row_of(reply)
    return reply[3] and {state = reply[4], definition = reply[5], look = reply[6], now = tonumber(reply[1])}
  end
  local function finds(before, reply) return counted(before, {found = row_of(reply)}) end
  local function forgets() return {found = false} end
  local function move(add, got)
    local named = {limit = 50, offset = 0, within = 0, nonce = 't', lists = 1}
    return add('moves', 'delay/move_due', named, {LIST}, nil, got)
  end

  local function dispatch(client, add, state)
    if client.found then
      change(add, client, 'sends', looked(client.found, client.found.now), forgets)
      return
    end
    read(add, 'looks', 10, {}, finds)
    if state.keys[names.waiting] then move(add, function(before) return counted(before) end) end
  end

  local function next_due(now) return START + (math.floor((now - START) / EVERY) + 1) * EVERY end
  -- As Schedules.putting.
  local function put(client, row, definition)
    local old, name = parsed(row.state), kit.fresh(client, '')
    local due, paused = next_due(row.now), old and old.paused or 0
    local after = {gen = name, since = name, due = due, runs = 0, skipped = 0, paused = paused}
    local look = paused == 1 and (row.look == '' and 'inf' or row.look) or due
    return {item(row.state, after, {definition = definition, look = look})}
  end
  local function operate(client, add)
    local row = client.found
    if not row then
      read(add, 'reads', 0, {'job'}, finds)
      return
    end
    local state = parsed(row.state)
    local function edit(label, items) change(add, client, label, items, forgets) end
    if not state then
      edit('puts', put(client, row, 'd3'))
      return
    end
    local paused = changed(state, {gen = kit.fresh(client, ''), paused = 1})
    edit('pauses', {item(row.state, paused, {})})
    edit('pauses for a while', {item(row.state, paused, {look = row.now + EVERY})})
    if state.paused == 1 then edit('resumes', looked(row, row.now)) end
    edit('runs', {item(row.state, changed(state, {runs = state.runs + 1}), {
      look = row.look, id = kit.fresh(client, 'h'), extra = true,
    })})
    edit('deletes', {item(row.state, nil, {})})
  end

  -- As Declaration: the versions, then the schedule, then once more the version, then the change.
  local function in_force(versions) return string.match(versions, '^%S*') end
  local function declare(client, add)
    local row, version = client.found, client.version
    local function versions(label, got)
      add(label, 'HGET', nil, {names.schedule_apps, APP}, nil, got)
    end
    if client.over then return end
    if not client.known then
      versions('reads versions', function(before, reply)
        local is_old = in_force(reply) ~= version and string.find(reply, version, 1, true)
        return counted(before, {known = reply, over = is_old and true, declared = in_force(reply) == version})
      end)
    elseif not client.declared then
      local stored = version .. ' ' .. client.known
      add('declares', 'schedules/declare', {app = APP, known = client.known, stored = stored}, {}, nil,
        function(before, reply)
          return counted(before, reply == 1 and {declared = true} or {known = false})
        end)
    elseif not row then
      read(add, 'reads', 0, {'job'}, function(before, reply)
        local found = row_of(reply)
        -- What a person has put stays.
        local stays = found.definition == client.definition or found.definition == 'd3'
        return counted(before, {found = found, over = stays, checked = false})
      end)
    elseif not client.checked then
      versions('checks', function(before, reply)
        local is_newest = in_force(reply) == version
        return counted(before, {checked = is_newest and reply, over = not is_newest})
      end)
    else
      change(add, client, 'puts', put(client, row, client.definition), function(_, is_done)
        return {found = false, over = is_done}
      end)
    end
  end

  function model.calls(client, call, state)
    local calls = {}
    local function add(...) calls[#calls + 1] = call(...) end
    if client.calls == 0 then return calls end
    if client.version then
      declare(client, add)
    elseif client.name == 'P' then
      operate(client, add)
    else
      dispatch(client, add, state)
    end
    return calls
  end

  function model.check(state)
    local known, places = state.known, {}
    local function found(body) places[body] = (places[body] or 0) + 1 end
    for _, body in ipairs(data(state, LIST)) do found(body) end
    for id, record in next, data(state, names.records) do
      found(string.match(record, LIST .. '(.*)$'))
      if not data(state, names.waiting)[id] then return id .. ': does not wait' end
    end
    for body in next, known.sent do
      if places[body] ~= 1 then return body .. ': is in ' .. (places[body] or 0) .. ' places' end
      places[body] = nil
    end
    if next(places) then return next(places) .. ': was not sent' end
    local now = known.state
    if (data(state, names.schedule_states).job or '') ~= text_of(now) then return 'the schedule has another state' end
    if not now then
      for _, name in ipairs({names.schedules, names.schedule_looks, names.schedule_events}) do
        if state.keys[name] then return name .. ': is left of what was deleted' end
      end
      return
    end
    local passed = (now.due - known.first[now.since]) / EVERY + (known.extra[now.since] or 0)
    if passed ~= now.runs + now.skipped then return 'a due time was neither sent nor counted' end
    local look = data(state, names.schedule_looks).job
    if not look or (now.paused == 0 and look > now.due) then return 'it is not looked at in time' end
  end

  function model.drain(state, run, call)
    local function add(...) return run(call(...)) end
    local function got() end
    local client = {name = 'Z', life = 0, calls = 90}
    local function changes(items)
      client.calls = client.calls - 1
      change(add, client, '', items, forgets)
    end
    state.now = state.now + 8 * EVERY
    -- The newer release starts again, and a person ends a pause.
    local versions = add('', 'HGET', nil, {names.schedule_apps, APP}, nil, got)
    if in_force(versions) == 'v1' then
      add('', 'schedules/declare', {app = APP, known = versions, stored = 'v2 ' .. versions}, {}, nil, got)
    end
    local row = row_of(read(add, '', 0, {'job'}, got))
    if row.definition ~= 'd2' and row.definition ~= 'd3' then changes(put(client, row, 'd2')) end
    if state.known.state.paused == 1 then changes(looked(row_of(read(add, '', 0, {'job'}, got)), state.now)) end
    state.now = state.now + EVERY
    local due = row_of(read(add, '', 10, {}, got))
    if due then changes(looked(due, due.now)) end
    move(add, got)
    if state.wrong then return state.wrong end
    if state.keys[names.records] then return 'a run is never sent' end
    if state.known.state.due <= state.now then return 'the schedule does not go on' end
    return model.check(state)
  end
  return model
end
