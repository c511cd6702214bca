-- Count waiting entries between due times.
--
-- KEYS waiting
-- ARGV now       TIME  0 = the server's clock
-- ARGV relative  FLAG  1 = the edges are ms from now, 0 = ms since the epoch
-- ARGV edges     LIST  in rising order, at least two; -inf and +inf are allowed
--
-- Returns {now in ms, for each edge but the last the count from it (inclusive) to the next (exclusive)}
-- O(edges * log waiting)

-- include clock
local reply = {now}
for i, edge in ipairs(edges) do
  if relative and tonumber(edge) then edges[i] = string.format('%.0f', now + edge) end
  if i > 1 then reply[i] = redis.call('ZCOUNT', waiting, edges[i - 1], '(' .. edges[i]) end
end
return reply
