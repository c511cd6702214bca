-- A lock: three clients that take it, wait for it, extend it, ask whether they have it, and give it back.
--
-- What is promised: nobody else takes the lock before the lease of its holder ends, and who holds it is never told that
-- it is lost; each holder has a greater fence than all before, also after the key has expired, and a call that is
-- repeated tells what it did; who gave the lock back, or went away without it, does not get it by a call that arrives
-- late; and the lock is free in the end.

local LEASE, KEPT = 1000, 3600000

return function(kit, names)
  local changed, counted, numbered = kit.changed, kit.counted, kit.numbered
  local model = {
    counters = {},
    limits = {faults = 2, ticks = 3, late = 1, steps = {LEASE + 1, -90000}},
    -- fences: token -> its fence; top: the greatest one; freed: tokens that gave the lock back; over: tokens whose
    -- callers know that they do not have it.
    known = {fences = {}, top = 0, freed = {}, over = {}},
    clients = {
      {name = 'A', life = 0, calls = 6, held = {}},
      {name = 'B', life = 0, calls = 5, held = {}, after = 1},
      {name = 'C', life = 0, calls = 3, held = {}, after = 2},
    },
  }
  function model.restarted(client)
    return {name = client.name, life = client.life + 1, calls = client.calls - 1, held = {}, after = client.after}
  end
  -- After an error, what the call did is unknown: who asked for the lock does not have it, as far as it knows.
  function model.failed(client, one)
    return counted(client, {held = one.gives_up and {} or client.held, token = false})
  end

  local function taken(token)
    return function(known, reply)
        local fence, wrong = reply[1], nil
      if fence == 0 or fence == known.fences[token] then return known end
      if fence <= known.top then wrong = 'has a fence that is not greater than all before' end
      local fences = changed(known.fences, {[token] = fence})
      return changed(known, {fences = fences, top = fence, wrong = wrong and token .. ': ' .. wrong})
    end
  end
  local function is_over(state, token)
    state.known = changed(state.known, {over = changed(state.known.over, {[token] = true})})
  end
  local function taking(client, add)
    -- Who waits asks again, with the same token, or goes away.
    for _, waits in ipairs(client.token and {true, false} or {false}) do
      local token = waits and client.token or kit.fresh(client, 't')
      add(waits and 'asks again' or 'takes', 'lock/acquire', numbered(client, {token = token, lease = LEASE}), {},
        taken(token),
        function(before, reply, after)
          local fence = reply[1]
          if before.token and not waits then is_over(after, before.token) end
          if fence == 0 then return counted(before, {token = token}) end
          local wrong = after.known.fences[token] ~= fence and token .. ': was told another fence' or nil
          local held = {lock = {token = token, ends = after.elapsed + LEASE}}
          return counted(before, {held = held, token = false}), wrong
        end)
    end
  end

  function model.calls(client, call, state)
    local calls, mine = {}, client.held.lock
    -- They are alike: each begins after the one before it.
    local before = state.clients[client.after]
    local is_first = before and not before.pending and before.calls == model.clients[client.after].calls
    if client.calls == 0 or is_first then return calls end
    local function add(...) calls[#calls + 1] = call(...) end
    if not mine then
      taking(client, add)
      return calls
    end
    -- A holder that was told so knows that its lease is lost, and one whose lease ended may be the last to know.
    local function lost(after) return mine.ends > after.elapsed and mine.token .. ': was told lost' or nil end
    for _, lease in ipairs({LEASE, 0}) do
      add(lease > 0 and 'extends' or 'checks', 'lock/extend', {token = mine.token, lease = lease}, {}, nil,
        function(before, reply, after)
          if reply == 0 then return counted(before, {held = {}}), lost(after) end
          local ends = lease > 0 and after.elapsed + LEASE or mine.ends
          return counted(before, {held = {lock = changed(mine, {ends = ends})}})
        end)
    end
    add('gives back', 'lock/release', {token = mine.token}, {},
      function(known, reply)
        if reply == 0 then return known end
        return changed(known, {freed = changed(known.freed, {[mine.token] = true})})
      end,
      function(before, reply, after)
        local was_freed = after.known.freed[mine.token]
        is_over(after, mine.token)
        return counted(before, {held = {}}), reply == 0 and not was_freed and lost(after) or nil
      end)
    calls[#calls].gives_up = true
    return calls
  end

  function model.check(state, C)
    local known, holders = state.known, 0
    if known.wrong then return known.wrong end
    for _, client in ipairs(state.clients) do
      if kit.holds(client, 'lock', state.elapsed) then holders = holders + 1 end
    end
    if holders > 1 then return 'the lock has two holders' end
    local token, key = C.HGET(names.holder, 'token'), state.keys[names.holder]
    if token and known.over[token] then return token .. ': has the lock, and its caller knows that it does not' end
    if key and not key.ends then return 'the key never expires' end
  end

  function model.drain(state, run, call, C)
    for round, passed in ipairs({300000, 1, KEPT + LEASE + 1}) do
      state.now, state.elapsed = state.now + passed, state.elapsed + passed
      local token = 'z' .. round
      local named = {token = token, lease = LEASE, sequence = round, slot = 'slot:Z'}
      local fence = run(call('', 'lock/acquire', named, {}, taken(token)))[1]
      if fence == 0 then return 'the lock is never free' end
      if run(call('', 'lock/release', {token = token}, {})) ~= 1 then return 'the lock was lost while it was held' end
      local wrong = model.check(state, C)
      if wrong then return wrong end
    end
  end
  return model
end
