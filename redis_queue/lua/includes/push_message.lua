-- Push a message into a list of Celery.
--
-- While Redis is full, a list gets at most 500: a message takes up to twice the memory there.
-- Needs leases. Defines push_message: takes a list and a message; returns the reply, or the error and its code and
-- whether Redis refuses all writes, REFUSES_ALL: the codes of such errors, MAX_FULL: these 500.
local MAX_FULL, REFUSES_ALL = 500, 'OOM READONLY MISCONF NOREPLICAS'
local function push_message(list, message)
  local pushed = redis.pcall('LPUSH', list, message)
  local code = type(pushed) == 'table' and string.match(pushed.err, '%u%u+')
  if code == 'OOM' and redis.call('LLEN', list) < MAX_FULL then
    -- first_write leases
    pushed, code = redis.call('LPUSH', list, message), nil
  end
  return pushed, code, code and string.find(REFUSES_ALL, code, 1, true)
end
