-- Claim failures for a retry, so that another one does not take them at the same time; or give them back.
--
-- KEYS failures, failed_at, retrying, slot
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV token     TEXT  of the caller
-- ARGV lease     MS    for which it holds them; 0 = give them back
-- ARGV rest      LIST  id and time of the failure in ms, two for each
--
-- Returns flags: 1 = claimed or given back, 0 = gone, replaced by a later failure, or claimed by another caller.
-- O(failures)

if #token > 128 then return redis.error_reply('ERR token: must be at most 128 bytes') end
-- include clock, last_call
if last == sequence then return outcome end
-- check retrying
local flags = {}
for i = 1, #rest, 2 do
  local id = rest[i]
  local ends, owner = string.match(redis.call('HGET', retrying, id) or '', '^(%d+) (.*)$')
  local mine = owner == token or not owner or tonumber(ends) <= now
  local same = tonumber(redis.call('ZSCORE', failed_at, id)) == tonumber(rest[i + 1])
  flags[#flags + 1] = mine and same and redis.call('HEXISTS', failures, id) == 1 and '1' or '0'
  if lease == 0 and owner == token then
    redis.call('HDEL', retrying, id)
  elseif lease > 0 and flags[#flags] == '1' then
    redis.call('HSET', retrying, id, string.format('%.0f ', now + lease) .. token)
  end
end
return remember(table.concat(flags))
