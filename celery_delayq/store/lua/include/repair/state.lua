-- Check second messages with one id.
--
-- Defines  let_pass  check_duplicate
-- Expects  tracking: duplicate_ids_there  DUPLICATE_IDS  list_duplicate
--          repair/report: note_drift

-- An operator may have deleted DUPLICATE_IDS, so fsck looks for both names of a message.
duplicate_ids_there = true

-- A full server must accept these small repairs: see dispatch/promote.lua.
local function let_pass()
  redis.call('ZREM', DUPLICATE_IDS, '')
end

-- DUPLICATE_IDS must list the name of a second message with the same id.
local function check_duplicate(name, repair)
  if string.find(name, '\0', 1, true) and not redis.call('ZSCORE', DUPLICATE_IDS, name) then
    note_drift('unlisted_duplicate', name, repair)
    if repair then
      let_pass()
      list_duplicate(name)
    end
  end
end
