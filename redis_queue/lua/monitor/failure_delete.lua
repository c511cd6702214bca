-- Delete failures, by hand or after their messages were stored for a retry.
--
-- KEYS[1] failures   HASH  id -> "<task>\0<exception>\0<JSON>"
-- KEYS[2] tracebacks HASH  id -> traceback and packed message
-- KEYS[3] failed_at  ZSET  id -> time of the failure (ms)
-- KEYS[4] groups     HASH  "<task>\0<exception>" -> "<failures> <first ms> <last ms> <last id>"
-- KEYS[5] retrying   HASH  id -> "<end of the lease> <token>"
-- KEYS[6] slot       STRING number and outcome of this caller's last call
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] sequence   number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV[3] token      of a caller that retries them; empty = by hand
-- ARGV[...] rest     id and time of the failure in ms, two for each
--
-- Returns flags: 1 = deleted, 0 = gone, replaced by a later failure, or another caller retries it.
-- O(failures * log N)
local failures, tracebacks, failed_at, groups, retrying, slot = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local now, sequence, token = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local rest = {unpack(ARGV, 4)}

-- include clock
-- include last_call
if last == sequence then return outcome end
redis.call('HLEN', failures)
redis.call('HLEN', tracebacks)
redis.call('HLEN', groups)
redis.call('HLEN', retrying)
redis.call('ZCARD', failed_at)
-- include remove_failure
-- As includes/first_write.lua.
redis.call('HDEL', failures, '')
local flags = {}
for i = 1, #rest, 2 do
  local id = rest[i]
  local ends, owner = string.match(redis.call('HGET', retrying, id) or '', '^(%d+) (.*)$')
  local free = owner == token or not owner or tonumber(ends) <= now
  local same = tonumber(redis.call('ZSCORE', failed_at, id)) == tonumber(rest[i + 1])
  flags[#flags + 1] = free and same and '1' or '0'
  if free and same then remove_failure(id) end
end
return remember(table.concat(flags))
