-- Where the messages with an id are: some of their names in one call, and about 1 MB of what stands
-- there. They come in the order of their nonces, under whichever of its two names each is found. So
-- one that gets its other name between two calls is neither passed over nor met twice.

-- Byte by byte, as Redis has it: the order of '<' is up to the locale of the server.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local left, right = string.byte(one, i), string.byte(other, i)
    if left ~= right then
      return left < right
    end
  end
  return #one < #other
end

-- Note the messages under a name: {name, state, value}; 's' is scheduled with its record as value,
-- 'w' waits, 'r' is running. Of what was cancelled nothing is told. Returns the bytes of the record.
local function add_found(found, name)
  local data = redis.call('HGET', ENTRIES, name)
  if data then
    found[#found + 1] = {name, 's', data}
  end
  for _, state in ipairs({'w', 'r'}) do
    local value = redis.call('HGET', state == 'w' and WAITING or RUNNING, name)
    if value and string.sub(value, 1, 1) ~= '!' then
      found[#found + 1] = {name, state, value}
    end
  end
  return data and #data or 0
end

-- Those of them that come behind a nonce, in order; nil is before all.
local function in_order(found, after)
  local sorted = {}
  for _, one in ipairs(found) do
    local _, nonce = read_tracked(one[3])
    if one[2] == 's' then
      _, nonce = read_record(one[3])
    end
    one[4] = nonce or ''
    if not after or is_before(after, one[4]) then
      sorted[#sorted + 1] = one
    end
  end
  table.sort(sorted, function(one, other) return is_before(one[4], other[4]) end)
  return sorted
end

-- How many names the call may still look at.
local names_left

-- Some messages with an id, from a place on: '[' is the first one, '(' and a nonce is behind that.
-- Returns them as add_found does, and the place where to go on; nil when these were the last ones.
-- A name alone is meant by what has a NUL: "<id> NUL <nonce>" or, where the name is an id,
-- "<id> NUL".
local function find_some(id, from)
  names_left = names_left - 1
  local alone = {}
  local first, nonce = string.match(id, '^([^%z]*)%z(.*)$')
  if first then
    take_room(add_found(alone, nonce == '' and first or id))
    return alone
  end
  local listed, most = {}, math.max(names_left, 1)
  if has_twins() then
    local start = string.sub(from, 1, 1) .. twin_name(id, string.sub(from, 2))
    listed = redis.call('ZRANGEBYLEX', TWINS, start, '(' .. id .. '\1', 'LIMIT', 0, most)
    names_left = names_left - #listed
  end
  -- Those that have the id alone for a name take their places among the others. Each call reads
  -- them, and the first one counts their bytes: they leave no later call without room.
  local bytes = add_found(alone, id)
  if from == '[' then
    take_room(bytes)
    if #listed == 0 then
      return alone
    end
  end
  alone = in_order(alone, from ~= '[' and string.sub(from, 2) or nil)
  local found, last = {}, nil
  for _, name in ipairs(listed) do
    if last and room <= 0 then
      return found, '(' .. last
    end
    last = string.sub(name, #id + 2)
    while alone[1] and not is_before(last, alone[1][4]) do
      found[#found + 1] = table.remove(alone, 1)
    end
    take_room(add_found(found, name))
  end
  if #listed == most then
    return found, '(' .. last
  end
  for _, one in ipairs(alone) do
    found[#found + 1] = one
  end
  return found
end

-- What is to be said of several messages with one id: the letter that comes first here.
local RANK = {r = 1, w = 2, c = 3, p = 4, d = 5, u = 6}

-- Change the messages with the ids ARGV[first], ARGV[first + step] and so on, of the first one from
-- a place on. 'change' gets name, state and value of each and the number of its id in ARGV, and
-- tells a letter. Returns a letter for each id and, where the last one has more messages, a newline
-- and the place where to go on; ids that have no letter were not looked at.
local function change_found(first, step, most, from, change)
  names_left = tonumber(most)
  local letters = {}
  for i = first, #ARGV, step do
    if i > first and (names_left <= 0 or room <= 0) then
      break
    end
    local found, more = find_some(ARGV[i], i == first and from or '[')
    local letter = 'u'
    for _, one in ipairs(found) do
      local its = change(one[1], one[2], one[3], i)
      letter = RANK[its] < RANK[letter] and its or letter
    end
    letters[#letters + 1] = letter
    if more then
      letters[#letters + 1] = '\n' .. more
      break
    end
  end
  return table.concat(letters)
end
