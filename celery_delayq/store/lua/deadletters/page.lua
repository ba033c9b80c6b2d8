-- Return about 1 MB of dead letters, in the order in which they died, in one string: clients read a
-- long reply far faster than a thousand short ones.
--
-- KEYS     1 dead  2 dead_at
-- ARGV     1 died at this time or later (ms or -inf)  2 or earlier (ms or +inf)  3 most dead letters
--          4 id of one that died at the first time, after which to begin, '' for none
-- Returns  {'1' when there is more, the lengths of the id, the dead letter (-1 when it is gone) and the
--          time of death (ms) of each, joined by spaces, all of these joined}
-- Repeat   reads only
-- @include record
-- @include room
-- @include ranks

local found, more = members_between(KEYS[2], ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[3]))
local sizes, parts = {}, {}
for i = 1, #found, 2 do
  if room <= 0 then
    more = true
    break
  end
  local id = found[i]
  local data = redis.call('HGET', KEYS[1], id)
  sizes[#sizes + 1] = #id .. ' ' .. (data and #data or -1) .. ' ' .. #found[i + 1]
  parts[#parts + 1] = id .. (data or '') .. found[i + 1]
  take_room(data and #data or 0)
end
return {more and '1' or '0', table.concat(sizes, ' '), table.concat(parts)}
