-- Return a part of a list in one string.
--
-- KEYS     list
-- ARGV     first_index: index of the first message: 0 or more to read forward, -1 or less to read
--            backward from the end where workers take messages
--          most_messages
--          longest_bytes: bytes of the longest message of the earlier part, 0 for none
-- Returns  {the length of each message, joined by spaces, all of them joined}; it stops after
--          about 1 MB
-- Repeat   reads only
-- Roles    exporter
-- @include types
-- @include byte_limit

expect_type(KEYS.list, 'list')
local from, left = tonumber(ARGV.first_index), tonumber(ARGV.most_messages)
local back = from < 0
-- Each LRANGE walks from the nearer end of the list to its place, so the script uses few of them.
longest_bytes, most_at_once = tonumber(ARGV.longest_bytes), 128
if longest_bytes > 0 then
  wanted_count = 32
end
local parts, sizes = {}, {}
while left > 0 and bytes_left > 0 do
  local number = count_to_read(left)
  local lowest = back and from - number + 1 or from
  local found = redis.call('LRANGE', KEYS.list, lowest, lowest + number - 1)
  local first, last = 1, #found
  if back then
    first, last = last, first
  end
  local bytes = 0
  for i = first, last, back and -1 or 1 do
    parts[#parts + 1] = found[i]
    sizes[#sizes + 1] = #found[i]
    bytes = bytes + #found[i]
  end
  take_read(#found, bytes)
  from = back and from - number or from + number
  left = #found == number and left - number or 0
end
return {table.concat(sizes, ' '), table.concat(parts)}
