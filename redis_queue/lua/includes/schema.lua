-- Refuse to work on data of a newer version.
--
-- Needs meta. Defines known: the version of its data, or nil, SCHEMA: the version of this code.
local known, SCHEMA = tonumber(redis.call('HGET', meta, 'schema') or ''), 1
if known and known > SCHEMA then return redis.error_reply('NEWER_SCHEMA') end
