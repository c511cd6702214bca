-- Store the state of a worker, the tasks that it runs, and runs that have ended.
--
-- KEYS workers, running, runs, runs_order, trees, releases, slot
-- ARGV now       TIME  0 = the server's clock
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat changes nothing, a lower number is refused
-- ARGV worker    TEXT  its name; empty = no worker
-- ARGV row       TEXT  JSON of its state; empty = it left
-- ARGV tasks     TEXT  JSON of the tasks that it runs; empty = none
-- ARGV release   TEXT  that of its app, to note when it was reported; empty = do not note it
-- ARGV ended     LIST  id, root and JSON of ended runs; three for each, at most 100
--
-- Returns the time in ms. Also removes workers that were not seen for an hour, out of ten random ones, and the oldest
-- runs, as long as it read less than 4 MiB: those of at most 20,000 tasks are kept, for two days, and of each task ten,
-- or one if they are more than 64 KiB. Of more than 100 releases the one that was reported longest ago is removed.
-- O(log runs * ended)

local GONE, LOOK, MAX_RUNS, KEEP_RUNS, LINES, TRIM, EXPIRE = 3600000, 10, 20000, 172800000, 10, 60, 345600
local MAX_RELEASES, KEEP_RELEASES, MAX_ENDED, LARGE, MAX_BYTES = 100, 10368000, 100, 65536, 4194304
if #ended > 3 * MAX_ENDED then return redis.error_reply('ERR ended: must be at most 100 runs') end
-- include clock, last_call
local answer = string.format('%.0f', now)
if last == sequence then return tonumber(answer) end
-- check running, runs
local kept = redis.call('ZCARD', runs_order)
-- check trees, releases
local there = redis.call('HRANDFIELD', workers, LOOK, 'WITHVALUES')
-- first_write workers

-- Not a pattern: in a long row without a zero byte it would look for one from each byte.
local function split(row)
  local at = string.find(row, '\0', 1, true)
  if at then return string.sub(row, 1, at - 1), string.sub(row, at + 1) end
end
for i = 1, #ended - 2, 3 do
  local id, root, line = ended[i], ended[i + 1], ended[i + 2]
  local lines = {line}
  local old_root, before = split(redis.call('HSTRLEN', runs, id) <= LARGE and redis.call('HGET', runs, id) or '')
  -- A caller may use an id again, under another root.
  if old_root and old_root ~= root then redis.call('ZREM', trees, old_root .. '\0' .. id) end
  for older in string.gmatch(before or '', '[^\n]+') do
    if #lines < LINES then lines[#lines + 1] = older end
  end
  redis.call('HSET', runs, id, root .. '\0' .. table.concat(lines, '\n'))
  kept = kept + redis.call('ZADD', runs_order, answer, id)
  redis.call('ZADD', trees, 0, root .. '\0' .. id)
end
if #ended > 0 then
  local oldest, bytes = redis.call('ZRANGE', runs_order, 0, #ended + TRIM, 'WITHSCORES'), 0
  for i = 1, #oldest, 2 do
    local id = oldest[i]
    if bytes < MAX_BYTES and (kept > MAX_RUNS or tonumber(answer) - oldest[i + 1] > KEEP_RUNS) then
      local row = redis.call('HGET', runs, id) or ''
      bytes = bytes + #row
      redis.call('ZREM', trees, (split(row) or '') .. '\0' .. id)
      redis.call('HDEL', runs, id)
      kept = kept - redis.call('ZREM', runs_order, id)
    end
  end
  for _, key in ipairs({runs, runs_order, trees}) do redis.call('EXPIRE', key, EXPIRE) end
end

for i = 1, #there, 2 do
  local seen = tonumber(string.match(there[i + 1], '^%d+')) or 0
  if now - seen > GONE then
    redis.call('HDEL', workers, there[i])
    redis.call('HDEL', running, there[i])
  end
end
if worker ~= '' and row ~= '' then
  redis.call('HSET', workers, worker, answer .. ' ' .. row)
  redis.call('EXPIRE', workers, EXPIRE)
else
  redis.call('HDEL', workers, worker)
end
if row ~= '' and tasks ~= '' then
  redis.call('HSET', running, worker, tasks)
  redis.call('EXPIRE', running, EXPIRE)
else
  redis.call('HDEL', running, worker)
end
if release ~= '' then
  local first = string.match(redis.call('HGET', releases, release) or '', '^(%d+) %d+$')
  if not first and redis.call('HLEN', releases) >= MAX_RELEASES then
    local oldest, oldest_at
    local known = redis.call('HRANDFIELD', releases, MAX_RELEASES, 'WITHVALUES')
    for i = 1, #known, 2 do
      local at = tonumber(string.match(known[i + 1], '^%d+ (%d+)$')) or 0
      if not oldest or at < oldest_at then oldest, oldest_at = known[i], at end
    end
    redis.call('HDEL', releases, oldest)
  end
  redis.call('HSET', releases, release, (first or answer) .. ' ' .. answer)
  redis.call('EXPIRE', releases, KEEP_RELEASES)
end
remember('')
return tonumber(answer)
