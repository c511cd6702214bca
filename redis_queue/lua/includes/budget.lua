-- Append a record to the reply, or its size if it does not fit into the budget; stop after the one that makes 1 MiB.
--
-- Needs MAX_BYTES, records, id, more: whether there are others, budget, bytes, reply, which begins with 1 if it stopped.
-- Sets bytes: those of the records in the reply.
local size = redis.call('HSTRLEN', records, id)
local fits = bytes + size <= budget
reply[#reply + 1] = fits and (redis.call('HGET', records, id) or '') or size
bytes = bytes + (fits and size or 0)
if bytes >= MAX_BYTES and more then
  reply[1] = 1
  break
end
