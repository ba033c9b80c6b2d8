-- Return about 1 MB of dead letters, in the order in which they died, in one string: clients read a
-- long reply far faster than a thousand short ones.
--
-- KEYS     dead  dead_at
-- ARGV     first_ms: died at this time or later (ms or -inf)
--          last_ms: died at this time or earlier (ms or +inf)
--          most_dead_letters
--          after_id: id of one that died at the first time, after which to begin, '' for none
-- Returns  {'1' when there is more, the lengths of the id, the dead letter (-1 when it is gone)
--          and the
--          time of death (ms) of each, joined by spaces, all of these joined}
-- Repeat   reads only
-- Roles    worker
-- @include record
-- @include room
-- @include ranks

local found, more = members_between(KEYS.dead_at, ARGV.first_ms, ARGV.last_ms, ARGV.after_id,
  tonumber(ARGV.most_dead_letters))
local sizes, parts = {}, {}
for i = 1, #found, 2 do
  if room <= 0 then
    more = true
    break
  end
  local id = found[i]
  local data = redis.call('HGET', KEYS.dead, id)
  sizes[#sizes + 1] = #id .. ' ' .. (data and #data or -1) .. ' ' .. #found[i + 1]
  parts[#parts + 1] = id .. (data or '') .. found[i + 1]
  take_room(data and #data or 0)
end
return {more and '1' or '0', table.concat(sizes, ' '), table.concat(parts)}
