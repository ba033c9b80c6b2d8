-- A call that is repeated after its reply was lost gets the same answer: it is kept for a minute.
local function answered(key)
  return redis.call('GET', key)
end

local function answer(key, text)
  redis.call('SET', key, text, 'EX', 60)
  return text
end
