-- Pause one key of a flow, or set its own limit and rate, until they are reset.
--
-- What waits for its place, or for its rate, is looked at again by admission/reconsider.lua.
--
-- KEYS config, rates
-- ARGV flow    TEXT   its name
-- ARGV key     TEXT   the key
-- ARGV places  TEXT   most messages of the key that run at once, "-" = no limit, "=" = as every key; "" = as before
-- ARGV spacing TEXT   ms between two starts, in the same way
-- ARGV burst   TEXT   how many may start at once, in the same way
-- ARGV paused  TEXT   1 = pause it, 0 = resume it, "" = as before
-- ARGV forget  FLAG   1 = forget how far its rate is used up
-- ARGV most    COUNT  most keys of the flow of which something is set
--
-- Returns 1 if something has changed, 0 if not, -1 if too many keys have something set.
-- O(1)

local of_keys = string.sub(config, 1, -7) .. 'rules:' .. flow
-- first_write config
local before = redis.call('HGET', of_keys, key)
local known = {string.match(before or '', '^(%S+) (%S+) (%S+) (%S+)')}
local values = {places, spacing, burst, paused}
for i, value in ipairs(values) do
  if value == '' then values[i] = known[i] or (i == 4 and '0' or '=') end
end
local text = table.concat(values, ' ')
if forget then redis.call('ZREM', rates, flow .. '\0' .. key) end
if text == '= = = 0' then return math.max(redis.call('HDEL', of_keys, key), forget and 1 or 0) end
if not before and redis.call('HLEN', of_keys) >= most then return -1 end
redis.call('HSET', of_keys, key, text)
return (text ~= before or forget) and 1 or 0
