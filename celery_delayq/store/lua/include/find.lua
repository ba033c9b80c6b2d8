-- Find messages by id. A call looks at a limited number of names and reads about 1 MB of records.
-- Messages come in the order of their message ids. So consecutive calls meet each message once,
-- even if a message gets its other name between two calls.
--
-- Defines  removed  add_tracked  add_found  in_order  names_left  find_some  RANK  change_one  change_found
-- Expects  tracking: ENTRIES  READY_INDEX  LEASED_INDEX  read_tracked  has_duplicate_ids
--            duplicate_name  DUPLICATE_IDS  DUE  ready_there  leased_there
--          record: read_record  is_before  due_at
--          byte_limit: take_bytes  bytes_left

-- Names of entries that the script has removed, or will remove at its end.
local removed = {}

local function add_tracked(found, name, state, index)
  local value = redis.call('HGET', index, name)
  if value and string.sub(value, 1, 1) ~= '!' then
    found[#found + 1] = {name, state, value}
  end
end

-- Add the messages under a name to 'found': {name, state, value}. State is 's' scheduled (the value
-- is the record), 'w' ready or 'r' leased. Skips cancelled messages. Returns the bytes of the
-- record.
local function add_found(found, name)
  local data = not removed[name] and redis.call('HGET', ENTRIES, name)
  if data then
    found[#found + 1] = {name, 's', data}
  end
  if ready_there ~= false then
    add_tracked(found, name, 'w', READY_INDEX)
  end
  if leased_there ~= false then
    add_tracked(found, name, 'r', LEASED_INDEX)
  end
  return data and #data or 0
end

-- Sort messages by message id. Keeps only message ids behind 'after'; nil keeps all.
local function in_order(found, after)
  local sorted = {}
  for _, one in ipairs(found) do
    local _, message_id = read_tracked(one[3])
    if one[2] == 's' then
      _, message_id = read_record(one[3])
    end
    one[4] = message_id or ''
    if not after or is_before(after, one[4]) then
      sorted[#sorted + 1] = one
    end
  end
  table.sort(sorted, function(one, other) return is_before(one[4], other[4]) end)
  return sorted
end

-- How many more names the call may look at.
local names_left

-- Find some messages with an id, from a place on: '[' is the start, '(<message_id>' is behind this
-- message id.
-- Returns the messages as add_found does, and the place where the next call continues; nil at the
-- end.
-- An id with a NUL stands for one name: "<id> NUL <message_id>" for this name, "<id> NUL" for the
-- name "<id>".
local function find_some(id, from)
  names_left = names_left - 1
  local alone = {}
  local first, message_id = string.match(id, '^([^%z]*)%z(.*)$')
  if first then
    take_bytes(add_found(alone, message_id == '' and first or id))
    return alone
  end
  local listed, most = {}, math.max(names_left, 1)
  if has_duplicate_ids() then
    local start = string.sub(from, 1, 1) .. duplicate_name(id, string.sub(from, 2))
    listed = redis.call('ZRANGEBYLEX', DUPLICATE_IDS, start, '(' .. id .. '\1', 'LIMIT', 0, most)
    names_left = names_left - #listed
  end
  -- A message whose name is the id alone is sorted in among the others. Each call reads it, but
  -- only the first call counts its bytes, so later calls have bytes left for other messages.
  local bytes = add_found(alone, id)
  if from == '[' then
    take_bytes(bytes)
    if #listed == 0 then
      return alone
    end
  end
  alone = in_order(alone, from ~= '[' and string.sub(from, 2) or nil)
  local found, last = {}, nil
  for _, name in ipairs(listed) do
    if last and bytes_left <= 0 then
      return found, '(' .. last
    end
    last = string.sub(name, #id + 2)
    while alone[1] and not is_before(last, alone[1][4]) do
      found[#found + 1] = table.remove(alone, 1)
    end
    take_bytes(add_found(found, name))
  end
  if #listed == most then
    return found, '(' .. last
  end
  for _, one in ipairs(alone) do
    found[#found + 1] = one
  end
  return found
end

-- The reply has one code for an id. If its messages have different codes, the lowest rank counts.
local RANK = {r = 1, w = 2, c = 3, p = 4, d = 5, m = 6, u = 7}

-- Change one message, see change_found. Changes it only if its due is 'wanted' (ms); nil is any
-- due.
local function change_one(one, wanted, i, change, change_ready)
  local name, state, value = unpack(one)
  if state == 's' then
    local score = redis.call('ZSCORE', DUE, name) or 0
    return wanted and due_at(score) ~= wanted and 'c' or change(name, score, value, i) or 'd'
  end
  return state == 'w' and change_ready and change_ready(name, value, wanted) or state
end

-- Change the messages with the ids ARGV[first], ARGV[first + step] and so on. 'from' is the place
-- where the first id starts. The last argument of an id is the due that its message must have (ms),
-- '' for any due.
-- 'change' gets name, score and record of a scheduled message, and the index of its id in ARGV. It
-- returns a code; nil means 'd'. 'change_ready' may be missing. It gets name and value of a ready
-- message, and the wanted due, and returns a code.
-- Returns a code for each id. A newline and the place to continue follow if the last id has more
-- messages. The call did not reach ids without a code.
local function change_found(first, step, most, from, change, change_ready)
  names_left = tonumber(most)
  local codes = {}
  for i = first, #ARGV, step do
    if i > first and (names_left <= 0 or bytes_left <= 0) then
      break
    end
    local found, more = find_some(ARGV[i], i == first and from or '[')
    local code = 'u'
    for _, one in ipairs(found) do
      local its = change_one(one, tonumber(ARGV[i + step - 1]), i, change, change_ready)
      code = RANK[its] < RANK[code] and its or code
    end
    codes[#codes + 1] = code
    if more then
      codes[#codes + 1] = '\n' .. more
      break
    end
  end
  return table.concat(codes)
end
