-- Find, change and remove the owners of keys of unique tasks.
--
-- A field of owners is the name of a task, NUL and a key. Its value is "token, tokens before, state, ms for which it is
-- kept, task id". States: s = its message is being sent, d = waits in the store until it is due, w = waits, r = runs.
-- The messages that it is sent instead of stand before it, as state and token, joined by "+"; "-" = none. Until it is
-- confirmed, the first of them all that a worker takes runs, and the others do not.
-- Needs now, owners, owner_ends, replaced. Defines by_id: HASH task id -> field, of tasks for which nobody waits, read:
-- takes a field and returns these five values, own: writes them and when they end (ms), disown: removes them, of a field
-- and a task id, drop: takes a token whose message must not run, drop_all: the same of tokens before, is_dropped: takes
-- the token of a message that was taken or settled, and its letter, of which includes/unique_message.lua tells; tells
-- whether it must not run, and forgets it, without: returns tokens before without one of them or nothing, give_up: notes
-- that a message is gone; tells whether it had a part in the field, owner: as read, but what has ended owns nothing,
-- HOLD: ms in which a message that owns a key has to be confirmed, AGAIN: ms for which one that must not run, and was
-- dropped, is remembered if another broker may deliver it again.
local HOLD, AGAIN = 10000, 3600000
local by_id = string.sub(owners, 1, -2) .. '_ids'
local function read(field)
  return string.match(redis.call('HGET', owners, field) or '', '^(%x+) (%S+) (%a) (%d+) (.*)$')
end
local function own(field, token, before, state, ttl, id, ends)
  if before == '' then before = '-' end
  redis.call('HSET', owners, field, table.concat({token, before, state, ttl, id}, ' '))
  redis.call('ZADD', owner_ends, string.format('%.0f', ends), field)
end
local function disown(field, id)
  redis.call('HDEL', owners, field)
  redis.call('HDEL', by_id, id)
  redis.call('ZREM', owner_ends, field)
end
local function drop(token, ttl)
  local kept = math.max(604800000, tonumber(ttl))
  redis.call('ZADD', replaced, string.format('%.0f', now + kept), token)
end
local function drop_all(before, ttl)
  for _, token in string.gmatch(before, '([dwr])(%x+)') do drop(token, ttl) end
end
local function is_dropped(token, letter)
  if letter == string.lower(letter) then return redis.call('ZREM', replaced, token) == 1 end
  local kept = redis.call('ZSCORE', replaced, token)
  if kept then redis.call('ZADD', replaced, string.format('%.0f', now + AGAIN), token) end
  return kept and true or false
end
local function without(before, token)
  local rest, found = {}, nil
  for state, other in string.gmatch(before, '([dwr])(%x+)') do
    if other == token then found = true else rest[#rest + 1] = state .. other end
  end
  return found and table.concat(rest, '+')
end
local function give_up(field, token)
  local found, before, state, ttl, id = read(field)
  local rest = found and found ~= token and without(before, token)
  if rest then
    local ends = tonumber(redis.call('ZSCORE', owner_ends, field) or 0)
    if rest == '' and state ~= 's' then
      -- It is not known whether the message that is left was sent: if it is not confirmed soon, it does not run.
      state, ends = 's', now + HOLD
    end
    own(field, found, rest, state, ttl, id, ends)
  elseif found == token then
    disown(field, id)
  end
  return rest or found == token
end
local function owner(field)
  local token, before, state, ttl, id = read(field)
  if not token then return end
  local ends = tonumber(redis.call('ZSCORE', owner_ends, field) or 0)
  if ends > now then return token, before, state, ttl, id end
  if state == 's' and before ~= '-' then
    -- Its sender died or hangs.
    state = string.sub(before, 1, 1)
    own(field, token, before, state, ttl, id, now + ttl)
    return token, before, state, ttl, id
  end
  -- Should the message of a sender that died have been sent, it must not run.
  if state == 's' then drop(token, ttl) end
  disown(field, id)
end
