-- What fsck checks of second messages with one id.
--
-- Defines  let_pass  check_duplicate
-- Expects  tracking: duplicate_ids_there  DUPLICATE_IDS  list_duplicate
--          repair/report: note_drift

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
    note_drift('unlisted_duplicate', name, repair)
    if repair then
      let_pass()
      list_duplicate(name)
    end
  end
end
