-- Free the keys of unique tasks whose messages are settled.
--
-- Needs owned, is_dropped, give_up. Defines free_keys: takes delivery tags and those of them that were not in flight.
local function free_keys(tags, missing)
  if #tags == 0 or redis.call('EXISTS', owned) == 0 then return end
  local lost = {}
  for _, name in ipairs(missing) do lost[name] = true end
  for i, text in ipairs(redis.call('HMGET', owned, unpack(tags))) do
    local letter, token, field = string.match(text or '', '^(%a) (%x+) (.*)$')
    if letter then
      redis.call('HDEL', owned, tags[i])
      if not lost[tags[i]] then
        is_dropped(token, letter)
        if string.lower(letter) ~= 't' then give_up(field, token) end
      end
    end
  end
end
