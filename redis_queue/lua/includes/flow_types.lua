-- Check the types of keys before the first write: an error after it would lose a message that was taken.
--
-- Needs running, rates, oldest, backlog, owners, owner_ends, replaced, owned.
redis.call('HLEN', backlog)
redis.call('ZCARD', oldest)
redis.call('ZCARD', rates)
redis.call('HLEN', running)
redis.call('HLEN', owners)
redis.call('ZCARD', owner_ends)
redis.call('ZCARD', replaced)
redis.call('HLEN', owned)
