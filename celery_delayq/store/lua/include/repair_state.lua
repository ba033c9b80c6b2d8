-- A hand may have removed the list of second messages, so all are looked for.
twins_there = true

-- A full server refuses to add anything; what is mended here is small and must pass: see
-- dispatch/promote.lua.
local function let_pass()
  redis.call('ZREM', TWINS, '')
end

-- A second message with the same id is found by its name, so that must be listed.
local function check_twin(name, mend)
  if string.find(name, '\0', 1, true) and not redis.call('ZSCORE', TWINS, name) then
    note('unlisted_twin', name, mend)
    if mend then
      let_pass()
      list_twin(name)
    end
  end
end

-- Whether something has a unique key; a scheduled owner is read.
local function has_owner(key)
  local owner, nonce = read_owner(key)
  if not owner then
    return false
  end
  local place, _, value = find_owner(owner, nonce, key)
  take_room(place and #value or 0)
  return place ~= nil
end

-- What is to have a unique key gets it when nobody has it.
local function check_key(id, nonce, unique, mend)
  local key = string.sub(unique, 2)
  if unique ~= '-' and not has_owner(key) then
    note('keyless', id, mend)
    if mend then
      let_pass()
      redis.call('HSET', UNIQUE, key, '=' .. twin_name(id, nonce))
    end
  end
end
