-- Unique tasks with one key: a producer that keeps and one that replaces, both with and without a delay, two workers, a
-- dispatcher that also sweeps, and a person who cancels, revokes and reschedules.
--
-- What is promised: of the messages that were confirmed, at most one waits (until its start), or waits or runs (until
-- its end); it is in one place until it is settled, unless one with its id replaces it; an older one does not start after
-- a newer one was confirmed or has started, nor one that was cancelled or whose sender was told so; a duplicate has
-- the id of a task that will run; and in the end all have run and the key is free.

local LEASE, HOLD, DELAY, TTL = 5000, 10000, 5000, 86400000
local FIELD, LIST, ROUTE = 'job\0k', 'list', '"", "a"'
local AT = {step = '0', queue = 'a', task = '', of_task = '', of_queue = ''}

return function(kit, names, worker)
  local changed, counted, numbered = kit.changed, kit.counted, kit.numbered
  -- A message is its token and its task id, as JSON.
  local function token_in(text) return string.match(text, '"(%x+)/%w+"') end
  local function message_of(token, id) return '"' .. token .. '/' .. id .. '"' end
  -- As UniqueHeader.element.
  local function element(known, token, id)
    return table.concat({'\1' .. known.ends, token, TTL, #FIELD, #id, FIELD .. id .. message_of(token, id)}, ' ')
  end

  local function find(known, token)
    for at, one in ipairs(known.tokens) do
      if one.token == token then return one, at end
    end
  end
  -- What is known when something else is known of a token.
  local function noted(known, token, change)
    local one, at = find(known, token)
    local tokens = {unpack(known.tokens)}
    tokens[at] = changed(one, change)
    return changed(known, {tokens = tokens})
  end
  -- Whether a later message with the same id has some property.
  local function later(known, token, has)
    local one, at = find(known, token)
    for i = at + 1, #known.tokens do
      local other = known.tokens[i]
      if other.id == one.id and has(other) then return true end
    end
  end
  local function counts(one) return one.confirmed or one.started end

  local work = worker(kit, names, {
    lease = LEASE, queues = {'a'}, id_in = token_in,
    group = function(token, state)
      return changed(AT, {message = element(state.known, token, find(state.known, token).id)})
    end,
    started = function(known, token)
      local one, wrong = find(known, token), nil
      if one.refused then wrong = 'starts although its sender was told that it does not' end
      if one.gone then wrong = 'starts although it was cancelled' end
      if later(known, token, counts) then wrong = 'starts after a newer one' end
      for _, other in ipairs(known.tokens) do
        if known.ends == 'e' and other.runs then wrong = 'starts while ' .. other.token .. ' runs' end
      end
      local found = noted(known, token, {started = true, runs = true})
      return wrong and changed(found, {wrong = token .. ': ' .. wrong}) or found
    end,
    returned = function(known, token) return noted(known, token, {runs = false}) end,
    settled = function(known, token, tag) return noted(known, token, {done = tag, runs = false}) end,
    settled_by = function(known, token) return find(known, token).done end,
  })
  local data, GROUP = work.data, work.root .. 'list:0\0a\0\0\0'

  local model = {
    counters = {put = true},
    limits = {faults = 2, ticks = 2, late = 1, steps = {LEASE + 1, HOLD + 1, -90000}},
    ignored = work.ignored,
    -- tokens: those that owned the key, in order.
    known = {tokens = {}, refused = {}},
    clients = {
      {name = 'A', life = 0, calls = 5, queues = {'a'}, held = {}},
      {name = 'B', life = 0, calls = 3, queues = {'a'}, held = {}},
      {name = 'P', life = 0, calls = 4, letter = 'a', replaces = 0, held = {}},
      {name = 'Q', life = 0, calls = 6, letter = 'b', replaces = 1, held = {}},
      {name = 'D', life = 0, calls = 6, found = {}, held = {}},
      {name = 'O', life = 0, calls = 2, held = {}},
    },
  }

  function model.restarted(client)
    return {
      name = client.name, life = client.life + 1, calls = client.calls - 1, queues = client.queues, held = {},
      letter = client.letter, replaces = client.replaces, found = client.found and {},
    }
  end
  -- After an error, what the call did is unknown. A send that failed is withdrawn. The caller gets an error.
  function model.failed(client, one)
    local change = work.failed(client, one)
    change.sending = one.sends and changed(client.sending, {step = 'withdraw'}) or false
    change.id, change.extends = false, false
    return counted(client, change)
  end

  local function confirmed(known, token, yes)
    return noted(known, token, yes and {confirmed = true} or {refused = true})
  end
  local function waits_in_group(state, token)
    for _, element in ipairs(data(state, GROUP)) do
      if token_in(element) == token then return true end
    end
  end
  -- Whether a duplicate may be told this id.
  local function will_run(state, id)
    for _, one in ipairs(state.known.tokens) do
      local free = state.known.ends == 's' and one.started and not waits_in_group(state, one.token)
      if one.id == id and counts(one) and not (one.done or one.gone or free) then return true end
    end
  end

  -- Owners, FlowSender and DelayQueue number their calls apart.
  local function owners_call(client, named)
    return changed(numbered(client, named), {slot = 'slot:owner' .. client.name .. client.life})
  end
  -- The calls of UniqueCalls._send, Capture and Owners.
  local function producer_calls(client, add, state)
    local one = client.sending
    if not one then
      for _, ends in ipairs(state.known.ends and {state.known.ends} or {'e', 's'}) do
        for _, delay in ipairs({0, DELAY}) do
          local token = client.letter .. client.life .. client.calls
          local id = client.id or 'i' .. string.upper(token)
          add('acquires until ' .. (ends == 'e' and 'end' or 'start') .. (delay > 0 and ' for later' or ''),
            'admission/acquire', owners_call(client, {
              field = FIELD, token = token, running = '', id = id, ttl = TTL + delay, due = 0,
              replaces = client.replaces, gone = '', awaited = 0,
            }), {}, function(known, reply, after)
              known = changed(known, {ends = known.ends or ends})
              after.known = known
              -- A repeated call gets the answer that was true.
              if reply[1] == 0 and not known.refused[token] and not will_run(after, reply[2]) then
                return changed(known, {wrong = reply[2] .. ': a duplicate of it was refused, and it does not run'})
              end
              if reply[1] == 0 then return changed(known, {refused = changed(known.refused, {[token] = true})}) end
              if reply[1] == 3 or find(known, token) then return known end
              local tokens = {unpack(known.tokens)}
              tokens[#tokens + 1] = {token = token, id = reply[2]}
              return changed(known, {tokens = tokens})
            end, function(before, reply)
              if reply[1] == 0 then return counted(before, {id = false}) end
              if reply[1] == 3 then return counted(before, {id = id}) end
              local stores = delay > 0 or (reply[1] == 2 and reply[3] == 'd')
              return counted(before, {id = id, sending = {
                token = token, id = reply[2], delay = delay, step = stores and 'store' or 'send', into = reply[3],
              }})
            end)
        end
      end
    elseif one.step == 'send' then
      local named = changed(AT, {is_new = 1, message = element(state.known, one.token, one.id)})
      add('sends', 'admission/send', numbered(client, named), {}, function(known, reply)
        return confirmed(known, one.token, reply > 0)
      end, function(before, reply, after)
        local wrong = (reply > 0) ~= (find(after.known, one.token).confirmed or false)
        local sent = counted(before, {sending = false, id = reply == 0 and before.id})
        return sent, wrong and 'a send was told wrong' or nil
      end).sends = true
    elseif one.step == 'store' then
      local body = message_of(one.token, one.id)
      local slot = 'slot:delay' .. client.name .. client.life
      local named = changed(numbered(client), {on_conflict = 'replace', slot = slot})
      add('stores', 'delay/push', named, {
        one.id, one.delay, 0, '', string.format('- 0 %d %d\n', #body, #LIST) .. LIST .. body,
      }, nil, function(before, reply)
        return counted(before, {sending = changed(one, {step = 'confirm', gone = reply[2] == '2'})})
      end).sends = true
    elseif one.step == 'confirm' then
      add('confirms', 'admission/confirm',
        owners_call(client, {field = FIELD, token = one.token, gone = one.gone and 1 or 0}), {},
        function(known, reply) return confirmed(known, one.token, reply == 1) end,
        function(before, reply) return counted(before, {sending = false, id = reply == 0 and before.id}) end)
    else
      add('withdraws', 'admission/release', {field = FIELD, token = one.token, sent = 0, owner_id = ''}, {},
        function(known, reply)
          return reply == 1 and one.into ~= 'd' and noted(known, one.token, {refused = true}) or known
        end, function(before) return counted(before, {sending = false, id = false}) end)
    end
  end

  local function person_calls(client, add, state)
    if client.extends then
      -- As StoredTasks.reschedule: then it reads the entry.
      local record = data(state, names.records)[client.extends.id]
      local named = {field = FIELD, token = record and token_in(record) or 'c', due = client.extends.due, ttl = TTL}
      add('extends', 'admission/extend', named, {}, nil, function(before) return counted(before, {extends = false}) end)
      return
    end
    local ids = {}
    for _, one in ipairs(state.known.tokens) do ids[one.id] = not one.done or nil end
    local function forget(known, id, token)
      local _, last = find(known, token)
      for at, one in ipairs(known.tokens) do
        -- One that has started, and waits again, may have taken the key from the one that was cancelled.
        local spared = last and at < last and one.started
        if one.id == id and at <= (last or #known.tokens) and not one.runs then
          known = noted(known, one.token, spared and {spared = true} or {gone = true})
        end
      end
      return known
    end
    for _, id in ipairs(kit.sorted(ids)) do
      add('revokes ' .. id, 'admission/revoke', {}, {id}, function(known, reply)
        return reply[1] and forget(known, id) or known
      end, function(before) return counted(before) end)
    end
    for _, id in ipairs(kit.sorted(data(state, names.records))) do
      local token = token_in(data(state, names.records)[id])
      add('cancels ' .. id, 'admission/cancel', numbered(client, {latest = 0}), {id, token, FIELD, token},
        function(known, flags)
          return (flags == '1' or flags == '2') and forget(known, id, token) or known
        end, function(before) return counted(before) end)
      local due = state.now + 2 * DELAY
      add('reschedules ' .. id, 'delay/reschedule', numbered(client, {id = id, delay = 0, due = due}), {}, nil,
        function(before, reply) return counted(before, {extends = reply == 1 and {id = id, due = due}}) end)
    end
  end

  local function move(add, got)
    local named = {limit = 10, offset = 0, within = 0, nonce = 'n', lists = -1}
    return add('moves', 'delay/move_due', named, {}, nil, got)
  end
  local function fetch(add, tag, got)
    return add('fetches', 'broker/fetch', {
      limit = 1, tag = tag, channel = 'channel', missed = 0, turns = 1, width = 1, lease = LEASE,
    }, {LIST, ROUTE}, nil, got)
  end

  function model.calls(client, call, state)
    local calls = {}
    if client.calls == 0 then return calls end
    local function add(...)
      calls[#calls + 1] = call(...)
      return calls[#calls]
    end
    if client.letter then
      producer_calls(client, add, state)
    elseif client.queues then
      -- The second worker is like the first one, and begins after it.
      local some = state.keys[GROUP] and (client.name == 'A' or next(state.clients[1].held))
      work.works(client, add, state, {2}, some)
    elseif not client.found then
      person_calls(client, add, state)
    elseif work.sweeps(client, add, state) then
      if state.keys[names.waiting] then
        move(add, function(before) return counted(before) end)
      end
      if state.keys[LIST] then
        -- A worker fetches a message that has a key, and lets it wait behind the others: Admission.put_behind.
        local tag = 'k' .. kit.fresh(client, '') .. '-'
        local one = fetch(add, tag, function(before, reply)
          return counted(before, {found = reply[5] and {{tag = tag .. '001', last = 1}} or {}, unread = false})
        end)
        one.once, one.tag = true, tag
      end
    end
    return calls
  end

  function model.check(state)
    local known, places, live = state.known, {}, 0
    if known.wrong then return known.wrong end
    local function add(text)
      local token = token_in(text)
      places[token] = (places[token] or 0) + 1
    end
    for _, name in ipairs({GROUP, LIST, names.records, names.unacked}) do
      for _, text in next, data(state, name) do add(text) end
    end
    local marked = data(state, names.replaced)
    local function may_start(one) return counts(one) or ((places[one.token] or 0) > 0 and not marked[one.token]) end
    for _, one in ipairs(known.tokens) do
      local token, count = one.token, places[one.token] or 0
      if count > 1 then return token .. ': is in ' .. count .. ' places' end
      if one.done and count > 0 then return token .. ': is done, and stays' end
      local runs = one.confirmed and not (one.done or one.gone or one.spared)
      local is_lost = runs and (count == 0 or marked[token]) and not later(known, token, may_start)
      if is_lost then return token .. ': was lost' end
      if runs and count > 0 and not marked[token] and not (known.ends == 's' and one.started) then live = live + 1 end
      if work.holders(state, token) > 1 then return token .. ': has two holders' end
    end
    if live > 1 then return 'two messages of the key wait or run' end
    if not data(state, names.owners)[FIELD] ~= not data(state, names.owner_ends)[FIELD] then
      return 'the key has an owner without an end'
    end
  end

  function model.drain(state, run, call)
    local function got() end
    local wrong = work.drain(state, run, call, 4, HOLD, model.check, function(add, returns, mark)
      move(add, got)
      for number in ipairs(data(state, LIST)) do
        fetch(add, 'k' .. mark .. number .. '-', got)
        returns('k' .. mark .. number .. '-001', 1)
      end
    end)
    if wrong then return wrong end
    for _, one in ipairs(state.known.tokens) do
      local runs = one.confirmed and not (one.done or one.gone or one.spared)
      if runs and not later(state.known, one.token, function(other) return other.done or other.gone end) then
        return one.token .. ': never ran'
      end
    end
    local reply = run(call('', 'admission/acquire', {
      sequence = 1, slot = 'slot:Z', field = FIELD, token = 'f', running = '', id = 'iZ', ttl = TTL, due = 0,
      replaces = 0, gone = '', awaited = 0,
    }, {}, nil, got))
    if reply[1] ~= 1 then return 'the key is never free: ' .. reply[2] .. ' owns it' end
    run(call('', 'admission/release', {field = FIELD, token = 'f', sent = 1, owner_id = ''}, {}, nil, got))
    for _, name in ipairs({names.owners, names.owner_ends, names.owner_ids, names.owned, names.unacked}) do
      if state.keys[name] then return name .. ': is left' end
    end
  end

  return model
end
