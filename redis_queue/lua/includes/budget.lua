-- Append a record to the reply, or its size if it does not fit into the budget.
--
-- Needs records, id, budget, bytes, reply. Sets bytes: those of the records in the reply.
local size = redis.call('HSTRLEN', records, id)
local fits = bytes + size <= budget
reply[#reply + 1] = fits and (redis.call('HGET', records, id) or '') or size
bytes = bytes + (fits and size or 0)
