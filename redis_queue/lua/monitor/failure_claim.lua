-- Claim failures for a retry, so that another one does not take them at the same time; or give them back.
--
-- KEYS[1] failures   HASH  id -> "<task>\0<exception>\0<JSON>"
-- KEYS[2] failed_at  ZSET  id -> time of the failure (ms)
-- KEYS[3] retrying   HASH  id -> "<end of the lease> <token>"
-- KEYS[4] slot       STRING number and outcome of this caller's last call
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[3] token      of the caller
-- ARGV[4] lease      ms for which it holds them; 0 = give them back
-- ARGV[...] rest     id and time of the failure in ms, two for each
--
-- Returns flags: 1 = claimed or given back, 0 = gone, replaced by a later failure, or claimed by another caller.
-- O(failures)
local failures, failed_at, retrying, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now, sequence, token, lease = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local rest = {unpack(ARGV, 5)}

-- include clock
-- include last_call
if last == sequence then return outcome end
redis.call('HLEN', retrying)
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
