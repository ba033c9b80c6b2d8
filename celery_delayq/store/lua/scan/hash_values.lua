-- Return values of a hash in one string: see scan/hash_scan.lua.
--
-- KEYS     hash
-- ARGV     fields…
-- Returns  {the length of each value, or -1 for a missing field, joined by spaces, all values
--          joined}; it stops after about 1 MB
-- Repeat   reads only
-- Roles    worker, exporter
-- @include types
-- @include byte_limit

expect_type(KEYS.hash, 'hash')
local sizes, parts = {}, {}
for i, field in ipairs(ARGV) do
  if bytes_left <= 0 then
    break
  end
  local value = redis.call('HGET', KEYS.hash, field)
  sizes[i] = value and #value or -1
  parts[i] = value or ''
  take_bytes(#parts[i])
end
return {table.concat(sizes, ' '), table.concat(parts)}
