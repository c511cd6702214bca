-- Compare the tokens of held messages or entries with their leases; check the types of the keys of an ack.
--
-- Needs held: id, token of each, records, in_flight, leases, errors. Defines flags: 1 = held, 0 = lease lost, for each,
-- done: ids of those that are held, reasons: number of errors.
local flags, done, reasons = {}, {}, 0
if #held > 0 then
  local ids, seen = {}, {}
  for i = 1, #held, 2 do ids[#ids + 1] = held[i] end
  local current = redis.call('HMGET', leases, unpack(ids))
  -- check records, in_flight
  reasons = redis.call('HLEN', errors)
  for i, id in ipairs(ids) do
    local token = ' ' .. held[2 * i]
    flags[i] = 0
    if current[i] and not seen[id] and string.sub(current[i], -#token) == token then
      flags[i] = 1
      done[#done + 1] = id
      seen[id] = true
    end
  end
end
flags = table.concat(flags)
