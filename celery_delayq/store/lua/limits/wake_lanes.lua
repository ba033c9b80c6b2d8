-- Wake the lanes of a limit whose definition has changed: each is tried now. One call handles 100 lanes.
--
-- KEYS     held  lanes  lanes_wake
-- ARGV     limit: name of the limit
--          after: the last lane of the earlier call, '' to begin
-- Returns  the last lane, '' when all lanes are done
-- Repeat   the same
-- Roles    worker, operator
-- @include clock
-- @include types
-- @include wake

expect_types(FIRST.held, 'zset', 'zset', 'list')
local time_us, lane = now_us(), ARGV.after
for _ = 1, 100 do
  local from = lane == '' and '[' .. ARGV.limit .. ':' or '(' .. lane .. '\1'
  local first = redis.call('ZRANGEBYLEX', KEYS.held, from, '(' .. ARGV.limit .. ';', 'LIMIT', 0, 1)[1]
  if not first then
    return ''
  end
  lane = string.match(first, '^[^%z]*')
  redis.call('ZADD', KEYS.lanes, time_us, lane)
  wake_consumers(KEYS.lanes_wake)
end
return lane
