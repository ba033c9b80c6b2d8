-- Where the messages with an id are: a list of {name, state, value}; 's' is scheduled with its
-- record as value, 'w' waits, 'r' is running. Of what was cancelled nothing is told.
local function find_all(id)
  local found = {}
  for _, name in ipairs(names_of(id)) do
    local data = redis.call('HGET', ENTRIES, name)
    if data then
      found[#found + 1] = {name, 's', data}
    end
    for state, index in pairs({w = WAITING, r = RUNNING}) do
      local value = redis.call('HGET', index, name)
      if value and string.sub(value, 1, 1) ~= '!' then
        found[#found + 1] = {name, state, value}
      end
    end
  end
  return found
end

-- What is to be said of several messages with one id: the letter that comes first here.
local RANK = {r = 1, w = 2, c = 3, p = 4, d = 5, u = 6}

local function worse(one, other)
  return RANK[one] < RANK[other] and one or other
end
