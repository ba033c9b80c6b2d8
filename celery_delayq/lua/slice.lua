-- Tell a part of a list, from its last message back, all in one string.
--
-- KEYS     1 ready list
-- ARGV     1 first and  2 last index, both from the end of the list, so negative
-- Returns  {the length of each message, joined by spaces, all of them joined}; the last ones only
--          where all are more than about 1 MB
-- Repeat   reads only
-- @include room

local first, last = tonumber(ARGV[1]), tonumber(ARGV[2])
local parts, sizes = {}, {}
while last >= first and room > 0 do
  local found = redis.call('LRANGE', KEYS[1], math.max(first, last - 9), last)
  for i = #found, 1, -1 do
    parts[#parts + 1] = found[i]
    sizes[#sizes + 1] = #found[i]
    take_room(#found[i])
  end
  last = #found > 0 and last - 10 or first - 1
end
return {table.concat(sizes, ' '), table.concat(parts)}
