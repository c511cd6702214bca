-- Remove a failure.
--
-- It is counted out of its group.
--
-- Needs failures, tracebacks, failed_at, groups, retrying. Defines remove_failure: takes an id.
local function remove_failure(id)
  local group = string.match(redis.call('HGET', failures, id) or '', '^([^%z]*%z[^%z]*)%z')
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
