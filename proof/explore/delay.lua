-- DelayQueue: a client that stores, moves and cancels entries, two dispatchers, and a person who buries what is overdue
-- and redrives it.
--
-- One dispatcher moves what is due in one step; the other claims, and delivers in one step or publishes elsewhere and
-- acks. Both sweep. What is promised: an entry is in one place until it was sent, and then in none; one that was
-- cancelled or replaced before it was claimed is never sent; a step that stores and sends at once sends once; a call
-- that is repeated tells what it did; and all that waits is sent in the end.

local LEASE, LIST = 1000, 'celery'

return function(kit, names)
  local changed, counted, numbered, flag = kit.changed, kit.counted, kit.numbered, kit.flag
  local model = {
    counters = {put = true, acked = true, claims = true, redelivered = true, put_back = true, dead = true},
    limits = {faults = 2, ticks = 3, late = 1, steps = {LEASE + 1, -90000}},
    -- state: what became of each body; current: id -> the body that is stored, and when it is due; published: bodies
    -- that were sent elsewhere.
    known = {state = {}, current = {}, published = {}},
    clients = {
      {name = 'A', life = 0, calls = 4, stores = true, held = {}},
      {name = 'B', life = 0, calls = 3, moves = true, held = {}},
      {name = 'C', life = 0, calls = 5, held = {}},
      {name = 'O', life = 0, calls = 3, operates = true, held = {}},
    },
  }
  function model.restarted(client)
    return {
      name = client.name, life = client.life + 1, calls = client.calls - 1,
      stores = client.stores, moves = client.moves, operates = client.operates, held = {},
    }
  end
  function model.failed(client, one) return counted(client, {held = one.gives_up and {} or client.held}) end

  local function outcome(known, body, state)
    return changed(known, {state = changed(known.state, {[body] = state})})
  end
  local function body_of(record) return string.sub(record, -6) end

  local function storing(client, add)
    for _, rule in ipairs({'replace', 'keep'}) do
      local body = kit.fresh(client, 'b') .. (rule == 'keep' and 'kkk' or 'rrr')
      body = string.sub(body, 1, 6)
      add('stores ' .. rule, 'delay/push', numbered(client, {on_conflict = rule}),
        {'m1', LEASE, 0, '', '- 0 6 ' .. #LIST .. '\n' .. LIST .. body},
        function(known, reply, after)
          local did = reply[2]
          if known.state[body] or did == '0' then return known end
          local before = known.current.m1
          if did == '2' then known = outcome(known, before, 'gone') end
          if did == '4' then known = outcome(known, before, 'maybe sent') end
          return changed(outcome(known, body, 'waits'), {current = {m1 = body, due = after.now + LEASE}})
        end,
        function(before, reply, after)
          local wrong = (reply[2] ~= '0') ~= (after.known.state[body] ~= nil)
          return counted(before), wrong and 'the store of ' .. body .. ' was told wrong: ' .. reply[2] or nil
        end)
    end
    local mine = kit.fresh(client, 'c')
    add('cancels', 'delay/cancel', numbered(client, {age = 86400000, held = ''}), {'m1', 'remove'},
      function(known, reply, after)
        local did, body = flag(reply, 1), known.current.m1
        if known.state[mine] then return known end
        known = outcome(known, mine, did)
        if did ~= '1' and did ~= '2' then return known end
        if not body then
          after.wrong = 'm1: was cancelled, and is not there'
          return known
        end
        return changed(outcome(known, body, did == '1' and 'gone' or 'maybe sent'), {current = {}})
      end,
      function(before, reply, after)
        local wrong = after.known.state[mine] ~= flag(reply, 1)
        return counted(before), wrong and 'the cancel was told wrong: ' .. reply or nil
      end)
    local moved = kit.fresh(client, 'r')
    add('reschedules', 'delay/reschedule', numbered(client, {id = 'm1', delay = 2 * LEASE, due = 0}), {},
      function(known, reply, after)
        if reply == 0 or known.state[moved] then return known end
        known = outcome(known, moved, 'done')
        return changed(known, {current = changed(known.current, {due = after.now + 2 * LEASE})})
      end,
      function(before) return counted(before) end)
  end

  -- Notes that the entry was taken; it must be due. Once it was, the clock may go back.
  local function taken(known, after)
    if after.now < (known.current.due or 0) then after.wrong = 'm1: was taken before it is due' end
    return changed(known, {current = changed(known.current, {due = false})})
  end
  local function moving(add)
    add('moves', 'delay/move_due', {limit = 10, offset = 0, within = 0, nonce = 't', lists = 1}, {LIST},
      function(known, reply, after) return reply[2] > 0 and taken(known, after) or known end,
      function(before) return counted(before) end)
  end

  local function operate(client, add, state)
    local mine = kit.fresh(client, 'o')
    if state.keys[names.waiting] then
      add('buries', 'delay/bury', {older_than = LEASE, limit = 10, reason = 'late'}, {},
        function(known, count, after)
          local due = known.current.due
          if count > 0 and due and after.now <= due + LEASE then after.wrong = 'm1: was buried too early' end
          return known
        end,
        function(before) return counted(before) end)
    end
    if state.keys[names.dead] then
      add('redrives', 'records/redrive', numbered(client, {after = 0, gap = 0, listed = '0'}), {'m1'},
        function(known, flags, after)
          if flags == '0' or known.state[mine] then return known end
          return changed(outcome(known, mine, 'done'), {current = changed(known.current, {due = after.now})})
        end,
        function(before, flags, after)
          local wrong = (flags == '1') ~= (after.known.state[mine] ~= nil)
          return counted(before), wrong and 'the redrive was told wrong: ' .. flags or nil
        end)
    end
  end

  -- A repeat may tell late that a body was sent: another one may be stored by now.
  local function sent(known, body)
    known = outcome(known, body, 'sent')
    return known.current.m1 == body and changed(known, {current = {}}) or known
  end

  local function claiming(client, add, gives_up)
    local held = kit.held(client, 'token')
    if #held == 0 then
      add('claims', 'delay/claim',
        numbered(client, {lease = LEASE, limit = 1, older_than = 0, within = 0, nonce = kit.fresh(client, 'n')}), {},
        function(known, reply, after)
          local again = known.claimed == reply[1]
          if #reply == 3 or again then return known end
          return changed(taken(known, after), {claimed = reply[1]})
        end,
        function(before, reply, after)
          local now_held, ends = {}, after.elapsed + reply[2] - after.now
          for i = 4, #reply, 4 do
            now_held[reply[i]] = {token = reply[1], ends = ends, body = body_of(reply[i + 3])}
          end
          return counted(before, {held = now_held})
        end)
      return
    end
    local one = client.held[held[1]]
    add('delivers', 'delay/deliver', numbered(client), {held[1], held[2], one.body, 0, 1, LIST, 0},
      function(known, reply)
        return reply == '1' and sent(known, one.body) or known
      end,
      function(before, reply, after)
        local wrong = (reply == '1') ~= (after.known.state[one.body] == 'sent')
        return counted(before, {held = {}}), wrong and 'the delivery was told wrong: ' .. reply or nil
      end)
    gives_up()
    if not one.published then
      add('publishes', 'HGET', nil, {names.meta, 'elsewhere'},
        function(known) return changed(known, {published = changed(known.published, {[one.body] = true})}) end,
        function(before)
          return counted(before, {held = {[held[1]] = changed(one, {published = true})}})
        end)
    else
      add('acks', 'records/ack', numbered(client), held,
        function(known, reply)
          return reply == '1' and sent(known, one.body) or known
        end,
        function(before, reply, after)
          local wrong = (reply == '1') ~= (after.known.state[one.body] == 'sent')
          return counted(before, {held = {}}), wrong and 'the ack was told wrong: ' .. reply or nil
        end)
      gives_up()
    end
    -- Nobody gives back what was published.
    if one.published then return end
    add('gives back', 'records/nack',
      numbered(client, {delay = 0, reason = 'no broker', max_deliveries = 0, counted = '0', listed = '0'}), held, nil,
      function(before) return counted(before, {held = {}}) end)
    gives_up()
  end

  function model.calls(client, call, state)
    local calls = {}
    local function add(...) calls[#calls + 1] = call(...) end
    local function gives_up() calls[#calls].gives_up = true end
    if client.calls == 0 then return calls end
    if client.stores then
      storing(client, add)
    elseif client.operates then
      operate(client, add, state)
    else
      if client.moves then moving(add) else claiming(client, add, gives_up) end
      add('puts back', 'records/put_back', {limit = 10, max_deliveries = 0, listed = '0'}, {}, nil,
        function(before) return counted(before) end)
    end
    return calls
  end

  function model.check(state, C)
    local sent, known = {}, state.known
    for _, body in ipairs(C.LRANGE(LIST, '0', '-1')) do
      if sent[body] then return body .. ': was sent twice' end
      sent[body] = true
    end
    for body, became in next, known.state do
      if became == 'gone' and (sent[body] or known.published[body]) then return body .. ': was gone, and was sent' end
      if became == 'maybe sent' and sent[body] then return body .. ': was sent by one who had lost it' end
      if became == 'sent' and not sent[body] and not known.published[body] then return body .. ': was lost' end
    end
    local body, record = known.current.m1, C.HGET(names.records, 'm1')
    local count = 0
    for _, name in ipairs({names.waiting, names.in_flight, names.dead}) do
      if C.ZSCORE(name, 'm1') then count = count + 1 end
    end
    if record then
      if count ~= 1 then return 'm1: is in ' .. count .. ' places' end
      if body_of(record) ~= body then return 'm1: has another body' end
      if sent[body] then return body .. ': was sent, and stays' end
    else
      if count > 0 then return 'm1: has a place, and no record' end
      if body and not sent[body] then return body .. ': was lost' end
    end
    local holders = 0
    for _, client in ipairs(state.clients) do
      local held = client.held.m1
      if held and held.body == body and kit.holds(client, 'm1', state.elapsed) then holders = holders + 1 end
    end
    if holders > 1 then return 'm1: has two holders' end
    if C.LLEN(names.quarantine) > 0 then return 'an entry went to quarantine' end
  end

  function model.drain(state, run, call, C)
    local got = function() end
    for round = 1, 3 do
      state.now = state.now + (round == 1 and 400000 or 3 * LEASE)
      run(call('', 'records/put_back', {limit = 10, max_deliveries = 0, listed = '0'}, {}, nil, got))
      run(call('', 'records/redrive', {after = 0, gap = 0, listed = '0', sequence = round, slot = 'slot:Z'}, {'m1'}))
      run(call('', 'delay/move_due', {limit = 10, offset = 0, within = 0, nonce = 't', lists = 1}, {LIST}, nil, got))
    end
    if C.HLEN(names.records) > 0 then return 'm1: is never sent' end
    return model.check(state, C)
  end
  return model
end
