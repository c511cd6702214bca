-- Change when a waiting entry is due.
--
-- KEYS[1] waiting    ZSET  id -> due time (ms)
-- KEYS[2] slot       STRING number and outcome of this caller's last call
-- KEYS[3] wake       CHANNEL told when something is due earlier than all before
-- ARGV[1] now        ms; 0 = the server's TIME
-- ARGV[2] id         of the entry
-- ARGV[3] delay      ms from now
-- ARGV[4] due        ms; 0 = use the delay
-- ARGV[5] expected   ms; change nothing unless it is due then; 0 = whenever it is due
-- ARGV[6] sequence   number of the call, grows per caller; a repeat gets the same answer, a lower one is refused
--
-- Returns 1 = changed, 0 = unknown id, claimed already, or due at another time.
-- O(log waiting)
local waiting, slot, wake = KEYS[1], KEYS[2], KEYS[3]
local now, id, delay, due = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local expected, sequence = tonumber(ARGV[5]), ARGV[6]

local last, outcome = string.match(redis.call('GET', slot) or '', '^(%d+) (.*)$')
if last == sequence then return tonumber(outcome) end
if last and tonumber(last) > tonumber(sequence) then return redis.error_reply('LATE_CALL') end
local function kept(changed)
  redis.call('SET', slot, sequence .. ' ' .. changed, 'PX', 60000)
  return changed
end
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if due == 0 then due = now + delay end
local before = tonumber(redis.call('ZSCORE', waiting, id) or '')
if not before or (expected ~= 0 and before ~= expected) then
  -- A first write that needs no memory lets the other pass when Redis is full.
  redis.call('ZREM', waiting, '')
  return kept(0)
end
local head = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
-- XX: an entry that was claimed meanwhile must not come back to life.
redis.call('ZADD', waiting, 'XX', string.format('%.0f', due), id)
-- A user without this permission only makes others look later.
if due < tonumber(head) then redis.pcall('PUBLISH', wake, '1') end
return kept(1)
