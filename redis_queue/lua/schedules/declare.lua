-- Note which version of an app declares schedules, if nobody has changed that since it was read.
--
-- KEYS schedule_apps
-- ARGV app     TEXT   its name
-- ARGV before  TEXT   what was read; "" = nothing
-- ARGV after   TEXT   JSON of its versions and of the names that it declares
--
-- Returns 1 = done, 0 = another process was faster.
-- O(1)

if (redis.call('HGET', schedule_apps, app) or '') ~= before then return 0 end
redis.call('HSET', schedule_apps, app, after)
return 1
