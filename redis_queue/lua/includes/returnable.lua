-- End with 0 unless a message in flight may be returned: its record is the one that the caller read, and its lease has
-- ended if that is asked for.
--
-- Needs now, index, unacked, lease_ends, tag, record, ended.
-- check index, lease_ends
if redis.call('HGET', unacked, tag) ~= record then return 0 end
do
  local ends = ended and redis.call('ZSCORE', lease_ends, tag)
  if ends and tonumber(ends) > now / 1000 then return 0 end
end
