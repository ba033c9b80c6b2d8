-- Look at members of a sorted set, and read their messages, in batches. The reply has the members
-- for which no bytes were left, and the next call gets them. A cursor cannot stop inside a page, and
-- a page of a small key has all its members.
--
-- Defines  look_at_each
-- Expects  byte_limit: bytes_left
--          repair/report: report

-- Look at the names that an earlier call has left, or at about 'most' members of a sorted set from
-- a cursor on. Returns the report (see include/repair/report.lua).
local function look_at_each(left, zset, cursor, most, look)
  local names = left
  if #left == 0 then
    local page = redis.call('ZSCAN', zset, cursor, 'COUNT', most)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      names[#names + 1] = page[2][i]
    end
  end
  for i, name in ipairs(names) do
    if bytes_left <= 0 then
      return report(cursor, i - 1, {unpack(names, i)})
    end
    look(name)
  end
  return report(cursor, #names)
end
