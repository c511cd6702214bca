-- Tell when the next waiting entry is due.
--
-- KEYS waiting
-- ARGV now  TIME  0 = the server's clock
--
-- Returns microseconds until then, 0 if it is due, -1 if no entry waits.
-- O(1)

-- include next_due
return next_in(redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES'))
