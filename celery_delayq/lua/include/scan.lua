-- Read a hash on from a cursor: about so many fields at most, while there is room. Returns the next
-- cursor, and each field with its value behind it. Of a hash that was much larger once, some pages
-- are empty.
local function scan_hash(key, cursor, most)
  local found = {}
  for _ = 1, most do
    local page = redis.call('HSCAN', key, cursor, 'COUNT', few(most - #found / 2))
    local bytes = 0
    cursor = page[1]
    for i = 1, #page[2], 2 do
      found[#found + 1] = page[2][i]
      found[#found + 1] = page[2][i + 1]
      bytes = bytes + #page[2][i + 1]
    end
    take_read(#page[2] / 2, bytes)
    if cursor == '0' or #found >= 2 * most or room <= 0 then
      break
    end
  end
  return cursor, found
end
