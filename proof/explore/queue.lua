-- RedisQueue: a producer, two consumers, which also sweep, and a person who redrives and deletes dead letters.
--
-- What is promised: a message that was stored is in one place until it is done, and then in none; a call that is
-- repeated tells what it did; nobody else holds a message before its lease ends; it is dead when its last delivery has
-- ended, not earlier and not later; and all is done in the end.

local LEASE, MOST = 1000, 2

return function(kit, names)
  local changed, counted, numbered = kit.changed, kit.counted, kit.numbered
  local function record(id) return '- 0 ' .. #id .. '\n' .. id end

  local model = {
    counters = {put = true, acked = true, claims = true, redelivered = true, put_back = true, dead = true},
    limits = {faults = 2, ticks = 2, late = 1, steps = {LEASE + 1, -90000}},
    -- put: id -> the call that stored it; done: id -> the token that acked it, or what else became of it; holder: id ->
    -- who claimed it last; claim, deliveries: id -> its last token, and how many it had.
    known = {put = {}, done = {}, holder = {}, claim = {}, deliveries = {}, did = {}},
    clients = {
      {name = 'A', life = 0, calls = 3, put = {'m1', 'm2'}, held = {}},
      {name = 'B', life = 0, calls = 4, put = {}, held = {}},
      {name = 'C', life = 0, calls = 4, put = {}, held = {}},
      {name = 'O', life = 0, calls = 2, put = {}, held = {}, operates = true},
    },
  }

  function model.restarted(client)
    return {
      name = client.name, life = client.life + 1, calls = client.calls - 1, put = {}, held = {},
      operates = client.operates,
    }
  end
  -- After an error, what the call did is unknown.
  function model.failed(client, one)
    return counted(client, {put = {unpack(client.put, 2)}, held = one.gives_up and {} or client.held})
  end

  local function done_by(known, held, flags, who, state)
    local done
    for i = 1, #held, 2 do
      if kit.flag(flags, (i + 1) / 2) == '1' then
        local repeated = known.done[held[i]] == held[i + 1]
        if known.holder[held[i]] ~= who and not repeated then state.wrong = held[i] .. ': was acked by ' .. who end
        done = done or changed(known.done, {})
        done[held[i]] = done[held[i]] or held[i + 1]
      end
    end
    return done and changed(known, {done = done}) or known
  end
  -- Whether flags tell the truth of what was acked.
  local function lies(state, held, flags)
    for i = 1, #held, 2 do
      local is_done = state.known.done[held[i]] == held[i + 1]
      if is_done ~= (kit.flag(flags, (i + 1) / 2) == '1') then
        return held[i] .. ': the ack of ' .. held[i + 1] .. ' was told wrong: ' .. flags
      end
    end
  end

  -- What is known when messages were claimed; a repeated call has the token of the first.
  local function claimed(known, reply, who)
    for i = 5, #reply, 3 do
      local id, token = reply[i], reply[1]
      local count = (known.deliveries[id] or 0) + (known.claim[id] == token and 0 or 1)
      known = changed(known, {
        holder = changed(known.holder, {[id] = who}), claim = changed(known.claim, {[id] = token}),
        deliveries = changed(known.deliveries, {[id] = count}),
      })
    end
    return known
  end
  local function operate(client, add, state)
    local found, mine = state.keys[names.dead], kit.fresh(client, '')
    for _, id in ipairs(kit.sorted(found and found.data or {})) do
      for _, verb in ipairs({'redrives', 'deletes'}) do
        local script = verb == 'redrives' and 'records/redrive' or 'records/delete_dead'
        add(verb .. ' ' .. id, script, numbered(client, {after = 0, gap = 0, listed = '1', latest = 0}), {id},
          function(known, flags)
            if flags == '0' or known.did[mine] then return known end
            local done = verb == 'deletes' and changed(known.done, {[id] = 'deleted'}) or known.done
            return changed(known, {
              done = done, deliveries = changed(known.deliveries, {[id] = false}),
              did = changed(known.did, {[mine] = true}),
            })
          end,
          function(before, flags, after)
            local wrong = (flags == '1') ~= (after.known.did[mine] ~= nil)
            return counted(before), wrong and id .. ': what became of a dead letter was told wrong' or nil
          end)
      end
    end
  end

  -- When a lease ends, in elapsed time.
  local function ends_of(at, state) return state.elapsed + at - state.now end

  function model.calls(client, call, state)
    local calls, me = {}, client.name .. client.life
    if client.calls == 0 then return calls end
    -- Who gives messages up holds them no longer, whatever the reply.
    local function add(...) calls[#calls + 1] = call(...) end
    local function gives_up() calls[#calls].gives_up = true end
    if client.operates then
      operate(client, add, state)
      return calls
    end
    local id = client.put[1]
    if id then
      local rest, mine = {unpack(client.put, 2)}, kit.fresh(client, '')
      for _, delay in ipairs({0, LEASE}) do
        add('puts ' .. id .. (delay > 0 and ' delayed' or ''), 'queue/put', numbered(client, {max_length = 0}),
          {id, delay, record(id)},
          function(known, reply)
            if reply[2] ~= '1' or known.put[id] then return known end
            return changed(known, {put = changed(known.put, {[id] = mine})})
          end,
          function(before, reply, after)
            local wrong = (reply[2] == '1') ~= (after.known.put[id] == mine)
            return counted(before, {put = rest}), wrong and id .. ': the put was told wrong: ' .. reply[2] or nil
          end)
      end
      return calls
    end

    local held = kit.held(client, 'token')
    for _, acks in ipairs(#held > 0 and {false, true} or {false}) do
      add(acks and 'acks and gets' or 'gets', 'queue/get',
        numbered(client, {lease = LEASE, limit = 1, nonce = kit.fresh(client, 'n')}), acks and held or {},
        function(known, reply, after)
          if acks then known = done_by(known, held, reply[4], me, after) end
          return claimed(known, reply, me)
        end,
        function(before, reply, after)
          local now_held, wrong = changed(acks and {} or before.held, {}), acks and lies(after, held, reply[4]) or nil
          for i = 5, #reply, 3 do now_held[reply[i]] = {token = reply[1], ends = ends_of(reply[2], after)} end
          return counted(before, {held = now_held}), wrong
        end)
      if acks then gives_up() end
    end
    if #held > 0 then
      add('acks', 'records/ack', numbered(client), held,
        function(known, flags, after) return done_by(known, held, flags, me, after) end,
        function(before, flags, after) return counted(before, {held = {}}), lies(after, held, flags) end)
      gives_up()
      for _, delay in ipairs({0, LEASE}) do
        add(delay > 0 and 'gives back for later' or 'gives back', 'records/nack',
          numbered(client, {delay = delay, reason = '', max_deliveries = MOST, counted = '1', listed = '1'}), held, nil,
          function(before) return counted(before, {held = {}}) end)
        gives_up()
      end
      add('extends', 'records/extend', {lease = LEASE}, held, nil, function(before, reply, after)
        local still = {}
        for i = 1, #held, 2 do
          if kit.flag(reply[2], (i + 1) / 2) == '1' then
            still[held[i]] = {token = held[i + 1], ends = ends_of(reply[1], after)}
          end
        end
        return counted(before, {held = still})
      end)
    end
    if client.name == 'C' and #held > 0 then
      local id = held[1]
      add('cannot read ' .. id, 'records/quarantine', {id = id, token = held[2], reason = 'x'}, {},
        function(known, reply)
          return reply == 1 and changed(known, {done = changed(known.done, {[id] = 'set aside'})}) or known
        end,
        function(before) return counted(before, {held = changed(before.held, {[id] = false})}) end)
      gives_up()
    end
    add('puts back', 'records/put_back', {limit = 10, max_deliveries = MOST, listed = '1'}, {}, nil,
      function(before) return counted(before) end)
    add('promotes', 'queue/promote', {limit = 10}, {}, nil, function(before) return counted(before) end)
    return calls
  end

  local function places(C, id)
    local count = C.ZSCORE(names.waiting, id) and 1 or 0
    if C.ZSCORE(names.in_flight, id) then count = count + 1 end
    if C.ZSCORE(names.dead, id) then count = count + 1 end
    for _, other in ipairs(C.LRANGE(names.ready, '0', '-1')) do
      if other == id then count = count + 1 end
    end
    return count
  end

  function model.check(state, C)
    local stored, aside = 0, 0
    for id in next, state.known.put do
      local is_done = state.known.done[id]
      if is_done == 'set aside' then aside = aside + 1 end
      if not is_done then stored = stored + 1 end
      local count, has_record = places(C, id), C.HEXISTS(names.records, id) == 1
      if count ~= (is_done and 0 or 1) then return id .. ': is in ' .. count .. ' places' end
      if is_done and has_record then return id .. ': is done, and stays' end
      if not is_done and not has_record then return id .. ': was lost' end
      local holders = 0
      for _, client in ipairs(state.clients) do
        if kit.holds(client, id, state.elapsed) then holders = holders + 1 end
      end
      if holders > 1 then return id .. ': has two holders' end
      local is_last, is_dead = (state.known.deliveries[id] or 0) >= MOST, C.ZSCORE(names.dead, id)
      if is_dead and not is_last then return id .. ': is dead too early' end
      if is_last and not (is_done or is_dead or C.ZSCORE(names.in_flight, id)) then return id .. ': is not dead' end
    end
    if C.HLEN(names.records) ~= stored then return 'a record that nobody stored' end
    if C.LLEN(names.quarantine) ~= aside then return 'the quarantine has others than were set aside' end
    if C.LLEN(names.ready) > 0 and C.LLEN(names.wake) == 0 then return 'messages are ready, and nobody is woken' end
  end

  function model.drain(state, run, call, C)
    local got = function() end
    for round = 1, 6 do
      state.now = state.now + (round == 1 and 300000 or LEASE + 1)
      run(call('', 'records/put_back', {limit = 10, max_deliveries = 0, listed = '1'}, {}, nil, got))
      run(call('', 'queue/promote', {limit = 10}, {}, nil, got))
      run(call('', 'records/redrive', {after = 0, gap = 0, listed = '1', sequence = 2 * round, slot = 'slot:Y'},
        C.ZRANGE(names.dead, '0', '-1'), nil, got))
      local reply = run(call('', 'queue/get', {
        lease = LEASE, limit = 10, nonce = 'nZ', sequence = 2 * round, slot = 'slot:Z',
      }, {}, nil, got))
      local held = {}
      for i = 5, #reply, 3 do held[#held + 1], held[#held + 2] = reply[i], reply[1] end
      if #held > 0 then
        run(call('', 'records/ack', {sequence = 2 * round + 1, slot = 'slot:Z'}, held, function(known, flags)
          for i = 1, #held, 2 do known = changed(known, {holder = changed(known.holder, {[held[i]] = 'Z'})}) end
          return done_by(known, held, flags, 'Z', state)
        end, got))
      end
    end
    for id in next, state.known.put do
      if not state.known.done[id] then return id .. ': is never done' end
    end
  end

  return model
end
