-- Return the first due of queues, and when dispatchers will look at them.
--
-- KEYS     next_due  control
--          due_of_queues…: of each queue
-- ARGV     queues…
-- Returns  for each {first due (ms) or '', look (ms) or '', 1 if paused else 0}
-- Repeat   reads only
-- Roles    worker, dispatcher

local looks = {}
for i, queue in ipairs(ARGV) do
  looks[i] = {
    redis.pcall('ZRANGE', KEYS[i + FIRST.due_of_queues - 1], 0, 0, 'WITHSCORES')[2] or '',
    redis.call('ZSCORE', KEYS.next_due, queue) or '',
      redis.call('HEXISTS', KEYS.control, 'q' .. queue)}
end
return looks
