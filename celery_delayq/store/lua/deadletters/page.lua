-- Return about 1 MB of dead letters, in the order of their time of death, in one string. Clients
-- read one long string far faster than a thousand short ones.
--
-- KEYS     dead  dead_at
-- ARGV     first_ms: died at this time or later (ms or -inf)
--          last_ms: died at this time or earlier (ms or +inf)
--          most_dead_letters
--          after_id: id of a dead letter that died at first_ms, after which to begin, '' for none
-- Returns  {'1' if there is more, for each dead letter the lengths of its id, the dead letter (-1
--          if it is gone) and its time of death (ms), joined by spaces, all of these texts joined}
-- Repeat   reads only
-- Roles    worker, exporter
-- @include record
-- @include byte_limit
-- @include ranks

local found, more = members_between(KEYS.dead_at, ARGV.first_ms, ARGV.last_ms, ARGV.after_id,
  tonumber(ARGV.most_dead_letters))
local sizes, parts = {}, {}
for i = 1, #found, 2 do
  if bytes_left <= 0 then
    more = true
    break
  end
  local id = found[i]
  local data = redis.call('HGET', KEYS.dead, id)
  sizes[#sizes + 1] = #id .. ' ' .. (data and #data or -1) .. ' ' .. #found[i + 1]
  parts[#parts + 1] = id .. (data or '') .. found[i + 1]
  take_bytes(data and #data or 0)
end
return {more and '1' or '0', table.concat(sizes, ' '), table.concat(parts)}
