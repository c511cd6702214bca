-- Store entries, with a rule for existing ids.
--
-- KEYS meta, records, waiting, in_flight, leases, errors, dead, slot, revoked, wake
-- ARGV now          TIME  0 = the server's clock
-- ARGV on_conflict  TEXT  replace, keep, error; for a single entry also own: replace only a record that contains the
--                         mark, or a number: replace only a record without the mark, stored at least so many ms ago
-- ARGV sequence     TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV entries      LIST  id, delay in ms, due time in ms (0 = use the delay), mark ("" = none), record; five for each
--
-- Returns {1 if the queue is new, flags}: per entry 1 = stored, 2 = replaced an existing one, 4 = replaced one that was
-- claimed before, even if that delivery was not counted (its holder, if any, lost the lease, but may have sent it), 3 =
-- stored, and its id was revoked before (a new call; only with a mark, never with own), 0 = kept the existing one. With
-- error, flags "exists <id>".
-- O(entries * log waiting)

-- include schema, last_call
if last == sequence then return {0, outcome} end
-- include clock, wake_dispatcher, marks
local notes = redis.call('ZCARD', revoked) > 0 and on_conflict ~= 'own'

-- In all other cases only the existence of a record matters.
local age = tonumber(on_conflict)
local one = (age or on_conflict == 'own') and redis.call('HGET', records, entries[1])
local ids = {}
for i = 1, #entries, 5 do ids[#ids + 1] = entries[i] end
local head = 'v1 ' .. string.format('%.0f', now) .. ' '
local flags, seen, fields, scores, taken, new, renewed = {}, {}, {}, {}, {}, {}, {}
local first = math.huge
for i, id in ipairs(ids) do
  local before, mark, stays = seen[id] or one, entries[5 * i - 1], on_conflict == 'keep'
  if is_long(mark) then return LONG_MARK end
  if one then
    local marked = mark ~= '' and string.find(one, mark, 1, true)
    stays = not marked
    if age then stays = marked or tonumber(string.match(one, '^v1 (%d+) ') or 0) > now - age end
  elseif not before then
    before = redis.call('HEXISTS', records, id) == 1
  end
  if before and on_conflict == 'error' then return {0, remember('exists ' .. id)} end
  if before and stays then
    flags[i] = 0
  else
    local delay, due = tonumber(entries[5 * i - 3]), tonumber(entries[5 * i - 2])
    if due == 0 then due = now + delay end
    first = math.min(first, due)
    flags[i] = before and (redis.call('HEXISTS', leases, id) + redis.call('HEXISTS', errors, id) > 0 and 4 or 2) or 1
    if before then taken[#taken + 1] = id else new[#new + 1] = id end
    if notes and mark ~= '' and redis.call('ZSCORE', revoked, id) then
      flags[i] = 3
      renewed[#renewed + 1], renewed[#renewed + 2] = string.format('%.0f', now), id .. '\n' .. mark
    end
    seen[id] = entries[5 * i]
    fields[#fields + 1], fields[#fields + 2] = id, head .. entries[5 * i]
    scores[#scores + 1], scores[#scores + 2] = string.format('%.0f', due), id
  end
end
flags = table.concat(flags)
if #fields > 0 then
  if #taken > 0 then
    -- check in_flight, leases, errors, dead
  end
  if on_conflict == 'own' then
    -- The caller moves the message of a task that it runs: a retry. Celery would drop a refused one.
    -- first_write leases
  end
  redis.call('HSET', records, unpack(fields))
  local placed = redis.pcall('ZADD', waiting, unpack(scores))
  if type(placed) ~= 'number' then
    -- A permission is missing: remove the records, or a repeated call would take them for stored entries.
    for _, id in ipairs(new) do redis.call('HDEL', records, id) end
    return placed
  end
  if #taken > 0 then
    redis.call('ZREM', in_flight, unpack(taken))
    redis.call('HDEL', leases, unpack(taken))
    redis.call('HDEL', errors, unpack(taken))
    redis.call('ZREM', dead, unpack(taken))
  end
  if #renewed > 0 then redis.call('ZADD', revoked, unpack(renewed)) end
  redis.call('HINCRBY', meta, 'put', #fields / 2)
  if not known then redis.call('HSET', meta, 'schema', SCHEMA) end
  wake_dispatcher(first)
end
return {known and 0 or 1, remember(flags)}
