-- Make elements for the quarantine.
--
-- Needs now. Defines unreadable: "<ms> <id length> <reason length>\n<id><reason><record>". The default reason is that
-- the record is missing or not complete.
local function unreadable(id, record, reason)
  reason = reason or record and 'not a whole record' or 'record missing'
  return string.format('%.0f %d %d\n', now, #id, #reason) .. id .. reason .. (record or '')
end
