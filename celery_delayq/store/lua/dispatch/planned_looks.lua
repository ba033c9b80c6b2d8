-- Tell when something is due in queues, and when they are looked at.
--
-- KEYS     1 next_due  2 control  3… due, of each queue
-- ARGV     1… queues
-- Returns  for each {due of the first (ms) or '', look (ms) or '', 1 if paused else 0}
-- Repeat   reads only

local looks = {}
for i, queue in ipairs(ARGV) do
  looks[i] = {
    redis.pcall('ZRANGE', KEYS[i + 2], 0, 0, 'WITHSCORES')[2] or '',
    redis.call('ZSCORE', KEYS[1], queue) or '', redis.call('HEXISTS', KEYS[2], 'q' .. queue)}
end
return looks
