-- A hand may have removed the list of second messages, so all are looked for.
duplicate_ids_there = true

-- A full server refuses to add anything; what is repaired here is small and must pass: see
-- dispatch/promote.lua.
local function let_pass()
  redis.call('ZREM', DUPLICATE_IDS, '')
end

-- A second message with the same id is found by its name, so that must be listed.
local function check_duplicate(name, repair)
  if string.find(name, '\0', 1, true) and not redis.call('ZSCORE', DUPLICATE_IDS, name) then
    note('unlisted_duplicate', name, repair)
    if repair then
      let_pass()
      list_duplicate(name)
    end
  end
end

-- Whether something has a unique key; a scheduled owner is read.
local function has_owner(key)
  local owner, message_id = read_owner(key)
  if not owner then
    return false
  end
  local place, _, value = find_owner(owner, message_id, key)
  take_room(place and #value or 0)
  return place ~= nil
end

-- What is to have a unique key gets it when nobody has it.
local function check_key(id, message_id, unique, repair)
  local key = string.sub(unique, 2)
  if unique ~= '-' and not has_owner(key) then
    note('keyless', id, repair)
    if repair then
      let_pass()
      redis.call('HSET', UNIQUE, key, '=' .. duplicate_name(id, message_id))
    end
  end
end
