-- Return values of a hash in one string: see scan/hash_scan.lua.
--
-- KEYS     1 hash
-- ARGV     1… fields
-- Returns  {the length of each value, or -1 for a missing field, joined by spaces, all values
--          joined}; it stops after about 1 MB
-- Repeat   reads only
-- @include types
-- @include room

expect_type(KEYS[1], 'hash')
local sizes, parts = {}, {}
for i, field in ipairs(ARGV) do
  if room <= 0 then
    break
  end
  local value = redis.call('HGET', KEYS[1], field)
  sizes[i] = value and #value or -1
  parts[i] = value or ''
  take_room(#parts[i])
end
return {table.concat(sizes, ' '), table.concat(parts)}
