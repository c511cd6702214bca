-- Change what is known of a flow.
--
-- Limits and rates stand in the code of the app. Those that are set at run time have precedence until they are reset.
--
-- KEYS config, declared, overrides, flags, rates
-- ARGV flow          TEXT  its name
-- ARGV declared_now  TEXT  its limits and rates as in the code; "" = as before
-- ARGV set           TEXT  its limits and rates that are set, "=" for each that stays as declared; "" = as before
-- ARGV flag          TEXT  what is paused: JSON of exchange and routing key of a queue, or the flow of a task
-- ARGV paused        TEXT  1 = pause it, 0 = resume it, "" = as before
-- ARGV forget        FLAG  1 = forget how far the rate of the whole flow is used up
-- ARGV weights       LIST  key, turns of this key for one of another, ...: written with declared_now
--
-- What waits for the places of its keys, or for a rate, is looked at again by admission/reconsider.lua.
-- Returns 1 if something has changed.
-- O(weights)

-- first_write config
local of_keys = string.sub(config, 1, -7) .. 'weights:' .. flow
local before = redis.call('HGET', config, flow) or ''
if declared_now == '' and before ~= '' and redis.call('HEXISTS', declared, flow) == 0 then
  -- A producer has sent a message, and has not declared the flow: nothing was set before.
  redis.call('HSET', declared, flow, before)
end
if declared_now ~= '' then
  redis.call('HSET', declared, flow, declared_now)
  redis.call('DEL', of_keys)
  if #weights > 1 then redis.call('HSET', of_keys, unpack(weights)) end
end
if set ~= '' then redis.call('HSET', overrides, flow, set) end
local known, changes = redis.call('HGET', declared, flow), redis.call('HGET', overrides, flow)
local rules, given = {}, string.gmatch(changes or '', '%S+')
for token in string.gmatch(known or '- - - - - - - -', '%S+') do
  local other = given()
  rules[#rules + 1] = other and other ~= '=' and other or token
end
local text = table.concat(rules, ' ')
redis.call('HSET', flags, '', 1)
if known or changes then redis.call('HSET', config, flow, text) end
if changes and not string.find(changes, '[^= ]') then redis.call('HDEL', overrides, flow) end
if paused == '1' then redis.call('HSET', flags, flag, 1) end
if paused == '0' then redis.call('HDEL', flags, flag) end
if forget then redis.call('ZREM', rates, flow) end
return (paused ~= '' or forget or text ~= before) and 1 or 0
