-- Read the first line of a record and compare the lengths in it with the record.
--
-- Needs record: false if missing. Defines head, target, body: lengths of headers, destination ("" = none) and body,
-- start: position of the headers, whole: true if the record is complete.
local head, body, target, start = string.match(record or '', '^v1 %d+ %S+ (%d+) (%d+) ?(%d*)\n()')
local whole = head and start + head + body + (target == '' and 0 or target) == #record + 1
