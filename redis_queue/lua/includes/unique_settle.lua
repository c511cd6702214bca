-- Free the keys of unique tasks whose messages are settled.
--
-- Needs owned, replaced, give_up. Defines free_keys: takes delivery tags and those of them that were not in flight.
local function free_keys(tags, missing)
  if #tags == 0 or redis.call('EXISTS', owned) == 0 then return end
  local lost = {}
  for _, name in ipairs(missing) do lost[name] = true end
  for i, text in ipairs(redis.call('HMGET', owned, unpack(tags))) do
    local until_, token, field = string.match(text or '', '^(%a) (%x+) (.*)$')
    if until_ then
      redis.call('HDEL', owned, tags[i])
      if not lost[tags[i]] then
        redis.call('ZREM', replaced, token)
        if until_ ~= 't' then give_up(field, token) end
      end
    end
  end
end
