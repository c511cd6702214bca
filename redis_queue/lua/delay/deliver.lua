-- Ack claimed entries and push their messages into lists of the same Redis, each in one atomic step.
--
-- The caller chooses the lists, so this script writes keys that it does not declare: not for Redis Cluster.
--
-- KEYS meta, records, in_flight, leases, errors, slot
-- ARGV sequence  TEXT  number of the call, grows per caller; a repeat gets the same reply, a lower number is refused
-- ARGV held      LIST  id, token, element, ms after which lists expire (0 = never), number of lists, the lists, number
--                      of keys that expire, those keys; for each
--
-- Returns flags: 1 = delivered, 0 = lease lost, 2 = a list has another type or cannot be written: still held.
-- If Redis is full and the first list has 500 messages (a message takes up to twice the memory there): its error.
-- O(held)

-- include last_call
if last == sequence then return outcome end
-- check records, in_flight, meta
local reasons = redis.call('HLEN', errors)
local flags, done, at = {}, {}, 1
-- include push_message
local function fits(lists)
  for _, list in ipairs(lists) do
    local kind = redis.call('TYPE', list).ok
    if kind ~= 'none' and kind ~= 'list' then return false end
  end
  return true
end
while at <= #held do
  local id, token, element, ttl = held[at], held[at + 1], held[at + 2], tonumber(held[at + 3])
  local lists = {unpack(held, at + 5, at + 4 + held[at + 4])}
  at = at + 5 + #lists
  local expiring = {unpack(held, at + 1, at + held[at])}
  at = at + 1 + #expiring
  local flag = 0
  local current = redis.call('HGET', leases, id)
  if current and string.sub(current, -#token - 1) == ' ' .. token then
    flag = fits(lists) and 1 or 2
    for _, list in ipairs(flag == 1 and lists or {}) do
      local pushed, refused, refuses_all = push_message(list, element)
      -- If Redis refuses all writes, this entry is not the cause. A missing permission may concern its list only.
      if refuses_all and #done == 0 then return pushed end
      if refused then flag = 2 end
    end
    for _, key in ipairs(flag == 1 and expiring or {}) do redis.call('PEXPIRE', key, ttl) end
    if flag == 1 then done[#done + 1] = id end
  end
  flags[#flags + 1] = flag
end
flags = table.concat(flags)
if #done == 0 then return flags end
-- include finish
return remember(flags)
