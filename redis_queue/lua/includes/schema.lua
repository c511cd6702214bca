-- Refuse to work on data of a newer version.
--
-- Needs known: the schema in meta, or false. Sets known: as a number, or nil. Defines SCHEMA: the version of this code.
local SCHEMA = 1
known = tonumber(known or '')
if known and known > SCHEMA then return redis.error_reply('NEWER_SCHEMA') end
