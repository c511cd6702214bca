-- Delete acked entries or messages and count them.
--
-- Needs done: their ids, at least one, meta, records, leases, errors, in_flight, reasons: number of errors.
redis.call('HDEL', records, unpack(done))
redis.call('HDEL', leases, unpack(done))
if reasons > 0 then redis.call('HDEL', errors, unpack(done)) end
redis.call('ZREM', in_flight, unpack(done))
redis.call('HINCRBY', meta, 'acked', #done)
