-- Become or stay the leader, or step down.
--
-- A leader only saves work for the others: entries move safely without one.
--
-- KEYS leader
-- ARGV member   TEXT  the caller
-- ARGV lease    MS    until another one may lead; 0 = step down
-- ARGV channel  TEXT  what a leader is subscribed to a second after it took the lead; "" = unknown
--
-- Returns {1 if the caller leads, the leader, ms left to it}
-- O(1)

local STARTING = 1000
local current = redis.call('GET', leader)
if current and current ~= member and channel ~= '' and redis.call('PTTL', leader) < lease - STARTING then
  -- The connection of a process that was killed is closed. Without the permission to ask, its lease has to end.
  local count = redis.pcall('PUBSUB', 'NUMSUB', channel)[2]
  if count == 0 then current = nil end
end
if lease == 0 then
  if current == member then redis.call('DEL', leader) end
  return {0, '', 0}
end
if not current or current == member then
  -- A first write that needs no memory: without a leader, nothing is dispatched.
  redis.call('PEXPIRE', leader, lease)
  redis.call('SET', leader, member, 'PX', lease)
  return {1, member, lease}
end
return {0, current, redis.call('PTTL', leader)}
