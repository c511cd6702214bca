-- Move due entries that have a destination into that list of the same Redis.
--
-- Destinations are in the entries, so this script writes keys that it does not declare; it must not be called on
-- Redis Cluster. A client that stores an entry chooses its destination; the caller restricts the lists.
--
-- KEYS meta, records, waiting, leases, errors, quarantine
-- ARGV now     TIME   0 = the server's clock
-- ARGV limit   COUNT  most entries to look at
-- ARGV offset  COUNT  due entries to skip: those that an earlier call skipped
-- ARGV within  MS     since which entries fell due at most; 0 = any time
-- ARGV nonce   TEXT   new for every call; followed by a number, the tag of one message
-- ARGV lists   COUNT  number of allowed lists; -1 = all
-- ARGV more    LIST   these lists, then the phrases that bytes from 0x82 on mean in a packed payload, which begins with
--                     byte 1; 0x80 means the id, 0x81 the tag. Without phrases, payloads are pushed unchanged
--
-- Returns {1 = there may be more, moved, skipped, microseconds until the next waiting entry is due (-1 = none), by how
-- many ms the moved entries were late, separated by spaces}. Skipped and unchanged: entries without a destination, with
-- one that is not a list or not allowed, and messages that the caller must decode. Unreadable records go to quarantine.
-- None of these blocks the others. If Redis is full, it stops at a list of 500 messages, where each takes up to twice
-- the memory, and returns 0.1 s. It stops after the entry that makes 1 MiB, so that no call blocks Redis for long.
-- O(limit * log waiting)

local FIRST, MAX_LATE, MAX_CODES, MAX_ID, MAX_BYTES, LARGE = 130, 315619200000, 500, 1020, 1048576, 4096
local MAX_PHRASE = 1024
if #nonce > 128 then return redis.error_reply('ERR nonce: must be at most 128 bytes') end
-- Caches the type of each destination, or that it is not allowed.
local kinds, codes, phrases = setmetatable({}, {__index = function() return lists >= 0 and 'barred' end}), {}, 0
for i, item in ipairs(more) do
  if i <= lists then
    kinds[item] = false
  elseif #item > MAX_PHRASE or phrases > 125 then
    return redis.error_reply('ERR phrases: must be at most 126 of ' .. MAX_PHRASE .. ' bytes')
  else
    codes[string.char(FIRST + phrases)], phrases = item, phrases + 1
  end
end
-- Returns false for a message that the caller must decode: it becomes too large, or has types that JSON lacks.
local function unpacked(record, from, id, tag)
  if phrases == 0 or string.byte(record, from) ~= 1 then return string.sub(record, from) end
  codes['\128'], codes['\129'] = id, tag
  local text, count = nil, 0
  if #record < LARGE then
    text, count = string.gsub(string.sub(record, from + 1), '[\128-\255]', codes, MAX_CODES)
  else
    -- gsub starts again at each byte: skipping plain bytes at once takes a seventh of the time.
    local parts, at, plain, code = {}, from + 1
    while at <= #record and count < MAX_CODES do
      plain, code, at = string.match(record, '^([^\128-\255]*)([\128-\255]?)()', at)
      parts[#parts + 1], parts[#parts + 2], count = plain, codes[code] or code, count + 1
    end
    text = table.concat(parts)
  end
  -- JSON encoders do not escape letters, so an escaped one may hide "__type__".
  local hides = string.find(text, '\\u00', 1, true) and string.find(text, '\\u00[2-7]')
  return not hides and count < MAX_CODES and not string.find(text, '"__type__"', 1, true) and text
end
-- Payloads that begin with another control character have a newer format: they stay. So do those with an edited id that
-- would break the JSON of the message.
local function unknown(record, from, id)
  local first = phrases > 0 and string.byte(record, from)
  local odd = #id > MAX_ID or string.find(id, '[%c"\\\127-\255]')
  if first == 1 then return odd and string.find(record, '\128', from, true) end
  return first and first < 32
end
-- include schema, next_due, unreadable
local at = string.format('%.0f', now)
local held, reasons = redis.call('HLEN', leases), redis.call('HLEN', errors)
-- check quarantine
local low = within > 0 and string.format('%.0f', now - within) or '-inf'
local due = redis.call('ZRANGEBYSCORE', waiting, low, at, 'WITHSCORES', 'LIMIT', offset, limit)
if #due == 0 then return {0, 0, 0, next_in(redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')), ''} end
local ids, late = {}, {}
for i = 1, #due / 2 do ids[i] = due[2 * i - 1] end
local FULL_WAIT = 100000
-- include push_message
local gone, moved, passed, stop, bytes, rest = {}, 0, 0, nil, 0, #ids == limit and 1 or 0
for i, id in ipairs(ids) do
  if bytes >= MAX_BYTES then rest = 1 break end
  local record = redis.call('HGET', records, id)
  bytes = bytes + #(record or '')
  -- include frame
  if not whole then
    -- first_write errors
    redis.call('RPUSH', quarantine, unreadable(id, record))
    gone[#gone + 1] = id
  elseif target == '' or unknown(record, start + head + target, id) then
    passed = passed + 1
  else
    local split = start + head
    local destination = string.sub(record, split, split + target - 1)
    local kind = kinds[destination] or redis.call('TYPE', destination).ok
    local element = (kind == 'none' or kind == 'list') and unpacked(record, split + target, id, nonce .. i)
    kinds[destination], bytes = kind, bytes + math.max(0, #(element or '') - #record)
    local pushed, refused, refuses_all
    if element then pushed, refused, refuses_all = push_message(destination, element) end
    if element and not refused then
      gone[#gone + 1], moved = id, moved + 1
      late[moved] = string.format('%.0f', math.min(now - due[2 * i], MAX_LATE))
    elseif refuses_all then
      stop, rest = pushed.err, 0 break
    else
      passed = passed + 1
    end
  end
end
if #gone > 0 then
  redis.call('ZREM', waiting, unpack(gone))
  redis.call('HDEL', records, unpack(gone))
  if held > 0 then redis.call('HDEL', leases, unpack(gone)) end
  if reasons > 0 then redis.call('HDEL', errors, unpack(gone)) end
end
local full = stop and string.find(stop, 'OOM', 1, true)
if stop and #gone == 0 and not full then return redis.error_reply(stop) end
local left = full and FULL_WAIT or next_in(redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES'))
return {rest, moved, passed, left, table.concat(late, ' ')}
