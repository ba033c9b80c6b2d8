-- Look at what leads to a queue: the next-due index, while something is scheduled, and the registry.
--
-- KEYS     1 due  2 entries  3 tasks  4 next_due  5 queues  6 leases  7 quarantined  8 dead  9 paused_due
--          10 control
-- ARGV     1 queue  2 layout of the queue  3 '1' to repair  4 for how long (ms) a queue is left alone
--          after an error (dispatch/defer_queue.lua), or for its rate
-- Returns  {0, 1, {}, then for each kind {kind, found, repaired, queue}}
-- Repeat   finds what is left
-- @include clock
-- @include types
-- @include record
-- @include dispatch/next_due
-- @include repair/report

local queue, repair = ARGV[1], ARGV[3] == '1'
expect_type(KEYS[1], 'zset')
expect_types(9, 'zset', 'hash')

-- Whether something is paused and due whose task is paused no more; of what is no entry any more, a few are
-- passed over.
local function goes_on()
  local start = '-'
  for _ = 1, 1000 do
    local first = redis.call('ZRANGEBYLEX', KEYS[9], start, '+', 'LIMIT', 0, 1)[1]
    if not first then
      return false
    end
    local task, name = string.match(first, '^([^%z]*)%z?%d*%z?(.*)$')
    if redis.call('HEXISTS', KEYS[10], 't' .. task) == 1 then
      start = '(' .. task .. '\1'
    elseif tonumber(redis.call('ZSCORE', KEYS[1], name) or 0) >= PAUSED_OFFSET then
      return true
    else
      start = '(' .. first
    end
  end
end

let_repairs_pass(repair, KEYS[4])
-- An early look does no harm: dispatch/promote.lua then says when the next one is to be, and takes a paused
-- queue out.
if redis.call('HEXISTS', KEYS[10], 'q' .. queue) == 0 then
  local now = to_ms(now_us())
  local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  local look = tonumber(redis.call('ZSCORE', KEYS[4], queue) or nil)
  local next_due = first[2] and tonumber(first[2]) < PAUSED_OFFSET and tonumber(first[2])
  if goes_on() then
    next_due = math.min(next_due or now, now)
  end
  local latest = next_due and math.max(next_due, now + tonumber(ARGV[4]))
  if latest and (not look or look > latest) then
    note('next_due_late', queue, repair)
  end
  if repair and #found > 0 then
    look_again(KEYS[4], queue, KEYS[1])
    if next_due then
      redis.call('ZADD', KEYS[4], 'LT', next_due, queue)
    end
  end
end
if redis.call('HEXISTS', KEYS[5], queue) == 0
  and redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[7], KEYS[8]) > 0
then
  note('unregistered', queue, repair, 'HSETNX', KEYS[5], queue, ARGV[2])
end
return tell('0', 1)
