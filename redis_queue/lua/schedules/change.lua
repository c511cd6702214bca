-- Change schedules and store the messages of their runs, each change only if its state is still the one that was read.
--
-- A change and its message are one step, so no run is sent twice or left out. Items with one name build on each other.
--
-- KEYS meta, records, waiting, wake, slot, schedules, schedule_states, schedule_looks, schedule_events, schedule_apps
-- ARGV now       TIME   0 = the server's clock
-- ARGV sequence  TEXT   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV limit     COUNT  most schedules; more are refused
-- ARGV most      COUNT  most events of a schedule that are kept beside new ones
-- ARGV app       TEXT   nothing is done unless versions is what is stored of this app; "" = in any case
-- ARGV versions  TEXT   see app
-- ARGV items     LIST   nine for each: name, state before ("" = none), state after ("" = delete the schedule),
--                       definition ("" = as before), ms of the next look ("inf" = none), new events, one in a line, id
--                       ("" = no message), due time in ms, record
--
-- Returns {1 if the queue is new, flags}: per item 1 = done, 0 = not as it was, 2 = too many schedules. A
-- message whose id is stored already is not stored again. A full Redis refuses all, unless no item has a message.
-- O(items * log)

-- include schema, last_call
if last == sequence then return {0, outcome} end
-- include clock, wake_dispatcher, store_entry
-- check schedules, schedule_looks, schedule_events
local is_old = app ~= '' and redis.call('HGET', schedule_apps, app) ~= versions
local count, states, flags, sends = redis.call('HLEN', schedule_states), {}, {}, 0
for i = 1, #items, 9 do
  local name, before, after = items[i], items[i + 1], items[i + 2]
  local same = not is_old and redis.call('HSTRLEN', schedule_states, name) == #before
  local found = states[name] or same and (redis.call('HGET', schedule_states, name) or '')
  local flag = found == before and 1 or 0
  if flag == 1 and found == '' and after ~= '' then
    if count >= limit then flag = 2 else count = count + 1 end
  end
  if flag == 1 then states[name] = after end
  flags[#flags + 1] = flag
end
local head, first = 'v1 ' .. string.format('%.0f', now) .. ' ', math.huge
for i = 1, #items, 9 do
  local id, due, record = items[i + 6], items[i + 7], items[i + 8]
  if flags[(i + 8) / 9] == 1 and id ~= '' and redis.call('HEXISTS', records, id) == 0 then
    local refused = store_entry(id, due, head .. record)
    if refused then return refused end
    sends, first = sends + 1, math.min(first, tonumber(due))
  end
end
-- first_write schedule_looks
local looked = tonumber(redis.call('ZRANGE', schedule_looks, 0, 0, 'WITHSCORES')[2]) or math.huge
for i = 1, #items, 9 do
  local name, _, after, definition, look, events = unpack(items, i, i + 5)
  if flags[(i + 8) / 9] == 1 then
    if after == '' then
      redis.call('HDEL', schedules, name)
      redis.call('HDEL', schedule_states, name)
      redis.call('HDEL', schedule_events, name)
      redis.call('ZREM', schedule_looks, name)
    else
      redis.call('HSET', schedule_states, name, after)
      if definition ~= '' then redis.call('HSET', schedules, name, definition) end
      redis.call('ZADD', schedule_looks, look, name)
      if look ~= 'inf' and tonumber(look) < looked then looked, first = tonumber(look), -math.huge end
    end
    if events ~= '' and after ~= '' then
      local lines = {events}
      for line in string.gmatch(redis.call('HGET', schedule_events, name) or '', '[^\n]+') do
        if #lines < most then lines[#lines + 1] = line end
      end
      redis.call('HSET', schedule_events, name, table.concat(lines, '\n'))
    end
  end
end
if sends > 0 then redis.call('HINCRBY', meta, 'put', sends) end
if not known and sends > 0 then redis.call('HSET', meta, 'schema', SCHEMA) end
wake_dispatcher(first)
return {(known or sends == 0) and 0 or 1, remember(table.concat(flags))}
