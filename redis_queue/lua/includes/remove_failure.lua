-- Remove a failure.
--
-- Needs failures, tracebacks, failed_at, groups, retrying. Defines LARGE: bytes that none has that workers keep, GROUP:
-- bytes in which its group is, remove_failure: takes an id; also counts it out of its group, unless it is larger.
local LARGE, GROUP = 65536, 4096
local function remove_failure(id)
  local row = redis.call('HSTRLEN', failures, id) <= LARGE and redis.call('HGET', failures, id) or ''
  local group = string.match(string.sub(row, 1, GROUP), '^([^%z]*%z[^%z]*)%z')
  if group then
    local count, rest = string.match(redis.call('HGET', groups, group) or '', '^(%d+)( .*)$')
    if count and tonumber(count) > 1 then
      redis.call('HSET', groups, group, string.format('%.0f', count - 1) .. rest)
    else
      redis.call('HDEL', groups, group)
    end
  end
  redis.call('HDEL', failures, id)
  redis.call('HDEL', tracebacks, id)
  redis.call('HDEL', retrying, id)
  redis.call('ZREM', failed_at, id)
end
