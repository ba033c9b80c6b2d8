-- Batches of members with messages to read. The reply names the members that found no room, and the
-- next call gets these names. A cursor cannot do that: a page of a small key has all its members.

local function names_in(page)
  local names = {}
  for i = 1, #page[2], 2 do
    names[#names + 1] = page[2][i]
  end
  return {page[1], names}
end

-- Look at one after the other, and return the report (see include/repair/report.lua).
local function look_at_each(page, look)
  local names = page[2]
  for i, name in ipairs(names) do
    if room <= 0 then
      return tell(page[1], i - 1, {unpack(names, i)})
    end
    look(name)
  end
  return tell(page[1], #names)
end
