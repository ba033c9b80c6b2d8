-- Collect the findings of a call of fsck.
--
-- Defines  found  note_drift  let_repairs_pass  report

-- The findings of a batch: for each kind the number found, the number repaired, and a few ids.
local found = {}

-- Note a finding. If 'repaired' is true and a command follows, the command makes the repair.
local function note_drift(kind, id, repaired, ...)
  local one = found[kind]
  if not one then
    one = {kind, 0, 0}
    found[kind] = one
    found[#found + 1] = one
  end
  one[2] = one[2] + 1
  one[3] = one[3] + (repaired and 1 or 0)
  if #one < 6 then
    one[#one + 1] = id
  end
  if repaired and ... then
    redis.call(...)
  end
end

-- A full server must accept repairs: see dispatch/promote.lua.
local function let_repairs_pass(repair, zset)
  if repair then
    redis.call('ZREM', zset, '')
  end
end

-- {next cursor, number looked at, {names left to the next call}, then for each kind {kind, found,
-- repaired, some ids…}}
local function report(cursor, looked, left)
  return {cursor, looked, left or {}, unpack(found)}
end
