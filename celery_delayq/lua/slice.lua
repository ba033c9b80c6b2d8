-- Tell a part of a list, all in one string.
--
-- KEYS     1 ready list
-- ARGV     1 first and  2 last index
-- Returns  {the length of each message, joined by spaces, all of them joined}
-- Repeat   reads only

local sizes = {}
local found = redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[2])
for i, message in ipairs(found) do
  sizes[i] = #message
end
return {table.concat(sizes, ' '), table.concat(found)}
