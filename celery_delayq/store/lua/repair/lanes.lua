-- Look at a batch of HELD: the member of a held entry must have the entry's lane, step and due, and
-- LANES must have the lane. A repair removes a wrong member, and has a lost lane tried: nothing else
-- would look at it.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  lanes_wake
-- ARGV     cursor
--          page_size: about how many to look at
--          repair: '1' to repair
--          names_left…: names left by an earlier call, to look at instead
-- Returns  {next cursor, looked at, {names left}, then for each kind {kind, found, repaired,
--          some lanes…}}
-- Repeat   finds what is left
-- Roles    operator
-- @include clock
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include wake
-- @include repair/report
-- @include repair/page

expect_state()
expect_type(KEYS.lanes_wake, 'list')
local repair = ARGV.repair == '1'
local left = {select(FIRST.names_left, unpack(ARGV))}

-- Whether a member is that of an entry that waits in this lane.
local function is_right(member)
  local name = string.match(member, '^[^%z]*%z%d+%z%d+%z(.*)$')
  local score = tonumber(name and redis.call('ZSCORE', DUE, name) or nil)
  if not score then
    return name ~= nil and redis.call('HEXISTS', ENTRIES, name) == 1 -- see repair/schedule.lua
  end
  if score < PAUSED_OFFSET then
    return false
  end
  local data = redis.call('HGET', ENTRIES, name)
  take_bytes(data and #data or 0)
  local step, _, _, start = read_record(data)
  if not step then
    return true -- dispatch/promote.lua handles an unreadable record
  end
  local _, _, _, _, behind = read_label(data, start)
  local lane = read_lane(data, behind)
  return lane ~= nil and member == lane_member(lane, step, due_at(score), name)
end

return look_at_each(left, HELD, ARGV.cursor, ARGV.page_size, function(member)
  local lane = string.match(member, '^[^%z]*')
  if not is_right(member) then
    note_drift('misplaced_held', lane, repair, 'ZREM', HELD, member)
  elseif not redis.call('ZSCORE', LANES, lane) then
    local first, last = lane_range(lane)
    -- Each lane counts once.
    if repair or redis.call('ZRANGEBYLEX', HELD, first, last, 'LIMIT', 0, 1)[1] == member then
      note_drift('lost_lane', lane, repair, 'ZADD', LANES, now_us(), lane)
    end
    if repair then
      wake_consumers(KEYS.lanes_wake)
    end
  end
end)
