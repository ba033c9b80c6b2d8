-- Find messages of limits that a process has leased without a permit.
--
-- A process of an older version takes no permits.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  leased  limits  permits
-- ARGV     queue
--          page_size: about how many leased messages to look at
-- Returns  the name of the limit of each such message
-- Repeat   reads only
-- Roles    worker, dispatcher
-- @include clock
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include leases/lease
-- @include limits/lanes
-- @include limits/permits
-- @include scan

expect_state()
expect_type(KEYS.leased, 'hash')
expect_type(KEYS.limits, 'hash')
expect_type(KEYS.permits, 'zset')
local now = to_ms(now_us())

-- The limit of a message that has no permit and needs one. A message that does not run needs none.
-- Nor does an expired one that a process of an older version has leased.
local function limit_without_permit(value)
  local _, _, start = read_leased(value)
  local id, message_id, behind
  if start then
    id, message_id, _, _, behind = read_label(value, start)
  end
  local lane, expires = nil, 0
  if id then
    lane, expires = read_lane(value, behind)
  end
  if not lane or not limit_of(lane) or expires > 0 and expires <= now then
    return nil
  end
  local _, tracked = find_tracked(LEASED_INDEX, id, message_id)
  local is_counted = redis.call('ZSCORE', KEYS.permits,
    permit_member(lane, ARGV.queue, id, message_id))
  if read_tracked(tracked) == '' and not is_counted then
    return string.match(lane, '^[^:]*')
  end
end

local names = {}
local _, found = scan_hash(KEYS.leased, '0', tonumber(ARGV.page_size))
for i = 2, #found, 2 do
  names[#names + 1] = limit_without_permit(found[i])
end
return names
