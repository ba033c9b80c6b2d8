-- Look whether a queue is registered and, if it has scheduled entries, is in the next-due index.
--
-- KEYS     due  entries  tasks  next_due  queues  leases  quarantined  dead  paused_due  control
--          lanes
-- ARGV     queue  layout
--          repair: '1' to repair
--          wait_ms: how long the next look may be delayed (ms), after an error
--            (dispatch/defer_queue.lua) or by a rate
-- Returns  {0, 1, {}, then for each kind {kind, found, repaired, queue}}
-- Repeat   finds what is left
-- Roles    operator
-- @include clock
-- @include types
-- @include record
-- @include dispatch/next_due
-- @include repair/report

local queue, repair = ARGV.queue, ARGV.repair == '1'
expect_type(KEYS.due, 'zset')
expect_types(FIRST.paused_due, 'zset', 'hash')

-- Whether an entry is paused and due while its task is not paused. Skips a limited number of
-- members without an entry.
local function goes_on()
  local start = '-'
  for _ = 1, 1000 do
    local first = redis.call('ZRANGEBYLEX', KEYS.paused_due, start, '+', 'LIMIT', 0, 1)[1]
    if not first then
      return false
    end
    local task, name = string.match(first, '^([^%z]*)%z?%d*%z?(.*)$')
    if redis.call('HEXISTS', KEYS.control, 't' .. task) == 1 then
      start = '(' .. task .. '\1'
    elseif tonumber(redis.call('ZSCORE', KEYS.due, name) or 0) >= PAUSED_OFFSET then
      return true
    else
      start = '(' .. first
    end
  end
end

let_repairs_pass(repair, KEYS.next_due)
-- An early look does no harm: dispatch/promote.lua then plans the next one, and removes a paused
-- queue.
if redis.call('HEXISTS', KEYS.control, 'q' .. queue) == 0 then
  local now = to_ms(now_us())
  local first = redis.call('ZRANGE', KEYS.due, 0, 0, 'WITHSCORES')
  local look = tonumber(redis.call('ZSCORE', KEYS.next_due, queue) or nil)
  local next_due = first[2] and tonumber(first[2]) < PAUSED_OFFSET and tonumber(first[2])
  local lane_moment = next_lane_moment(KEYS.lanes, now_us())
  next_due = lane_moment and math.min(next_due or lane_moment, lane_moment) or next_due
  if goes_on() then
    next_due = math.min(next_due or now, now)
  end
  local latest = next_due and math.max(next_due, now + tonumber(ARGV.wait_ms))
  if latest and (not look or look > latest) then
    note_drift('next_due_late', queue, repair)
  end
  if repair and #found > 0 then
    plan_next_look(KEYS.next_due, queue, KEYS.due, KEYS.lanes, now_us())
    if next_due then
      redis.call('ZADD', KEYS.next_due, 'LT', next_due, queue)
    end
  end
end
if redis.call('HEXISTS', KEYS.queues, queue) == 0
  and redis.call('EXISTS', KEYS.due, KEYS.entries, KEYS.tasks, KEYS.leases, KEYS.quarantined,
    KEYS.dead) > 0
then
  note_drift('unregistered', queue, repair, 'HSETNX', KEYS.queues, queue, ARGV.layout)
end
return report('0', 1)
