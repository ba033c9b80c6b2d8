-- Refuse keys of another type.
--
-- Defines  expect_type  expect_types  expect_all  expect_rare  lists_by_step  read_typed

-- Refuse a key of another type. A script does this before its first write, since Redis rolls
-- nothing back. Returns whether the key exists.
local function expect_type(key, wanted)
  local found = redis.call('TYPE', key)['ok']
  if found ~= wanted and found ~= 'none' then
    error('WRONGTYPE ' .. key .. ' is a ' .. found .. ', expected a ' .. wanted, 0)
  end
  return found ~= 'none'
end

-- Refuse KEYS of other types. The types are those of KEYS[first] and the following keys.
local function expect_types(first, ...)
  for i, wanted in ipairs({...}) do
    expect_type(KEYS[first + i - 1], wanted)
  end
end

-- Refuse KEYS of another type, from KEYS[first] to the last one.
local function expect_all(first, wanted)
  for i = first, #KEYS do
    expect_type(KEYS[i], wanted)
  end
end

-- Refuse keys of other types. The keys mostly do not exist: then this is one command. Returns
-- whether any key exists.
local function expect_rare(keys, types)
  if redis.call('EXISTS', unpack(keys)) == 0 then
    return false
  end
  for i, key in ipairs(keys) do
    expect_type(key, types[i] or types[#types])
  end
  return true
end

-- Ready lists by their priority steps. Refuses keys of another type.
local function lists_by_step(lists, steps)
  local list_of = {}
  for i, list in ipairs(lists) do
    expect_type(list, 'list')
    list_of[steps[i]] = list
  end
  return list_of
end

-- Read from a key. The error for a key of another type has its name.
local function read_typed(wanted, command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply['err'] then
    expect_type(key, wanted)
    error(reply['err'], 0)
  end
  return reply
end
