-- Return the first due of queues, when dispatchers will look at them, and whether limits are in use.
--
-- KEYS     next_due  control  limits  permits
--          due_and_lanes…: DUE of each queue, then LANES of each queue
-- ARGV     queues…
-- Returns  {1 if there are limits, permits or lanes, else 0, then for each queue
--          {first due (ms) or '', look (ms) or '', 1 if paused else 0}}
-- Repeat   reads only
-- Roles    worker, dispatcher

local of_limits = redis.call('EXISTS', KEYS.limits, KEYS.permits,
  select(FIRST.due_and_lanes + #ARGV, unpack(KEYS)))
local reply = {math.min(of_limits, 1)}
for i, queue in ipairs(ARGV) do
  reply[i + 1] = {
    redis.pcall('ZRANGE', KEYS[i + FIRST.due_and_lanes - 1], 0, 0, 'WITHSCORES')[2] or '',
    redis.call('ZSCORE', KEYS.next_due, queue) or '',
    redis.call('HEXISTS', KEYS.control, 'q' .. queue)}
end
return reply
