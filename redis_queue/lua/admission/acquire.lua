-- Let a message, which is about to be sent, own a key, unless another one does.
--
-- Unless it is confirmed within HOLD ms, it owns the key no longer, and does not run.
--
-- KEYS slot, owners, owner_ends, replaced
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV field     TEXT  task, NUL and key
-- ARGV token     TEXT  of the message, new for each
-- ARGV running   TEXT  token of the message that the caller runs and sends again; "" = none
-- ARGV id        TEXT  task id
-- ARGV ttl       MS    for which the key is owned at most, after it is due
-- ARGV due       TIME  when it is due; earlier times stand for now
-- ARGV replaces  FLAG  1 = replace an owner that waits
-- ARGV gone      TEXT  task id of a message that can no longer run, a dead letter; "" = none
-- ARGV awaited   FLAG  1 = others wait for the task: see admission/revoke.lua
--
-- Returns {outcome, task id, state}: 1 = it owns the key, 2 = it does, and replaces the message with this id and state;
-- 0 = that one owns it, 3 = that one is being sent: ask again soon.
-- O(log owners)

local MANY = 20
-- include last_call
if last == sequence then
  local number, state, other = string.match(outcome, '^(%d) (%a) (.*)$')
  return {tonumber(number), other, state}
end
-- include clock, unique_owner
ttl = string.format('%.0f', ttl + math.max(0, due - now))
-- check owner_ends, replaced
for _, name in ipairs(redis.call('ZRANGEBYSCORE', owner_ends, '-inf', string.format('%.0f', now), 'LIMIT', 0, MANY)) do
  if not owner(name) then disown(name, '') end
end
local old = redis.call('ZRANGEBYSCORE', replaced, '-inf', string.format('%.0f', now), 'LIMIT', 0, MANY)
if #old > 0 then redis.call('ZREM', replaced, unpack(old)) end
local found, before, state, _, other = owner(field)
local function answer(number, task_id, its_state)
  -- first_write owners
  remember(number .. ' ' .. its_state .. ' ' .. task_id)
  return {number, task_id, its_state}
end
local function send(before_it)
  if found and other ~= id then redis.call('HDEL', by_id, other) end
  if not awaited then redis.call('HSET', by_id, id, field) end
  own(field, token, before_it, 's', ttl, id, now + HOLD)
  return answer(1, id, 's')
end
local waits = state == 'w' or state == 'd'
if not found or (waits and other == gone) then return send('-') end
local instead = state .. found
-- What is replaced may wait longer.
local ends = redis.call('ZSCORE', owner_ends, field)
ttl = string.format('%.0f', math.max(ttl, ends - now))
if before ~= '-' then instead = instead .. '+' .. before end
if found == running and state ~= 's' then return send(instead) end
if state == 's' then return answer((running == '' or other == id) and 3 or 0, other, state) end
if not replaces or not waits then return answer(0, other, state) end
own(field, token, instead, 's', ttl, other, now + HOLD)
return answer(2, other, state)
