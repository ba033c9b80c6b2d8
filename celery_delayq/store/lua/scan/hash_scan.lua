-- Return a part of a hash in one string: clients read a long reply far faster than a thousand short
-- ones.
--
-- KEYS     1 hash
-- ARGV     1 cursor  2 about how many fields
-- Returns  {next cursor, for each 'length of its field, length of its value', joined by spaces, all
--          fields and values joined}; it stops after about 1 MB
-- Repeat   reads only
-- @include types
-- @include room
-- @include scan

expect_type(KEYS[1], 'hash')
local cursor, found = scan_hash(KEYS[1], ARGV[1], tonumber(ARGV[2]))
local sizes = {}
for i, each in ipairs(found) do
  sizes[i] = #each
end
return {cursor, table.concat(sizes, ' '), table.concat(found)}
