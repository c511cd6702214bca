-- Count the messages of a queue, consistently.
--
-- KEYS meta, records, ready, waiting, in_flight, dead, quarantine
--
-- Returns {ready, delayed, in flight, dead, quarantined, put, acked, redelivered, paused 0|1, ms when the next ready
-- message was put or 0, put back}
-- O(1)

local state = redis.call('HMGET', meta, 'put', 'acked', 'redelivered', 'paused', 'put_back')
local first = redis.call('LINDEX', ready, -1)
local record = first and redis.call('HGET', records, first) or ''
return {
  redis.call('LLEN', ready), redis.call('ZCARD', waiting), redis.call('ZCARD', in_flight),
  redis.call('ZCARD', dead), redis.call('LLEN', quarantine),
  tonumber(state[1] or 0), tonumber(state[2] or 0), tonumber(state[3] or 0), state[4] and 1 or 0,
  tonumber(string.match(record, '^v1 (%d+) ')) or 0, tonumber(state[5] or 0),
}
