-- Look at a batch of LANES: a lane that waits for a permit must be listed in BLOCKED_LANES or
-- FREED_LANES, and all permits of its limit must be taken. Any other is forgotten: no permit that
-- comes back wakes it. A repair has the lane tried now.
--
-- KEYS     held  lanes  lanes_wake  limits  permits  slots  blocked_lanes  freed_lanes
-- ARGV     queue  cursor
--          page_size: about how many to look at
--          repair: '1' to repair
-- Returns  {next cursor, looked at, {}, then for each kind {kind, found, repaired, some lanes…}}
-- Repeat   finds what is left
-- Roles    worker, dispatcher
-- @include clock
-- @include types
-- @include byte_limit
-- @include tracking
-- @include wake
-- @include limits/lanes
-- @include limits/permits
-- @include repair/report
-- @include repair/page

expect_types(FIRST.held, 'zset', 'zset', 'list', 'hash', 'zset', 'zset', 'zset', 'zset')
local repair, time_us = ARGV.repair == '1', now_us()

local function is_forgotten(lane)
  if tonumber(redis.call('ZSCORE', LANES, lane) or 0) ~= math.huge
    or redis.call('ZSCORE', KEYS.freed_lanes, ARGV.queue .. '\0' .. lane) then
    return false -- a look at the queue is planned, or the next look of the fleet finds the lane
  end
  local definition = limit_of(lane) -- nil if it was lost and is not stored again yet
  return not redis.call('ZSCORE', KEYS.blocked_lanes, lane .. '\0' .. ARGV.queue)
    or definition and (definition.concurrency == 0 or count_permits(lane) < definition.concurrency)
end

let_repairs_pass(repair, LANES)
return look_at_each({}, LANES, ARGV.cursor, ARGV.page_size, function(lane)
  if is_forgotten(lane) then
    note_drift('forgotten_lane', lane, repair, 'ZADD', LANES, time_us, lane)
    if repair then
      wake_consumers(KEYS.lanes_wake)
    end
  end
end)
