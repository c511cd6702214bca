-- Note which version of an app declares schedules, if nobody has changed that since it was read.
--
-- KEYS schedule_apps
-- ARGV app     TEXT   its name
-- ARGV known   TEXT   what was read; "" = nothing
-- ARGV stored  TEXT   JSON of its versions and of the names that it declares
--
-- Returns 1 = done, 0 = another process was faster.
-- O(1)

if (redis.call('HGET', schedule_apps, app) or '') ~= known then return 0 end
redis.call('HSET', schedule_apps, app, stored)
return 1
