-- Read a hash in pages.
--
-- Defines  scan_hash
-- Expects  byte_limit: count_to_read  take_read  bytes_left

-- Read about 'most' fields of a hash from a cursor on, while bytes are left. Returns the next
-- cursor, and each field followed by its value. A hash that was much larger before may give empty
-- pages.
local function scan_hash(key, cursor, most)
  local found = {}
  for _ = 1, most do
    local page = redis.call('HSCAN', key, cursor, 'COUNT', count_to_read(most - #found / 2))
    local bytes = 0
    cursor = page[1]
    for i = 1, #page[2], 2 do
      found[#found + 1] = page[2][i]
      found[#found + 1] = page[2][i + 1]
      bytes = bytes + #page[2][i + 1]
    end
    take_read(#page[2] / 2, bytes)
    if cursor == '0' or #found >= 2 * most or bytes_left <= 0 then
      break
    end
  end
  return cursor, found
end
