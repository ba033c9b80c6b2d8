-- Return a part of a hash in one string. Clients read one long string far faster than a thousand
-- short ones.
--
-- KEYS     hash
-- ARGV     cursor
--          page_size: about how many fields
-- Returns  {next cursor, the lengths of each field and its value, joined by spaces, all fields and
--          values joined}; it stops after about 1 MB
-- Repeat   reads only
-- Roles    worker, exporter
-- @include types
-- @include byte_limit
-- @include scan

expect_type(KEYS.hash, 'hash')
local cursor, found = scan_hash(KEYS.hash, ARGV.cursor, tonumber(ARGV.page_size))
local sizes = {}
for i, each in ipairs(found) do
  sizes[i] = #each
end
return {cursor, table.concat(sizes, ' '), table.concat(found)}
