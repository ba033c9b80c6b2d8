-- Count the scheduled entries of each task, for a limited number of tasks a call.
--
-- KEYS     tasks
-- ARGV     start: where to begin, as for ZRANGEBYLEX
--          most_tasks
-- Returns  {where the next call begins, '' at the end, then name and number of entries of each
--          task…}
-- Repeat   reads only
-- Roles    exporter

local start, reply = ARGV.start, {''}
for _ = 1, tonumber(ARGV.most_tasks) do
  local first = redis.call('ZRANGEBYLEX', KEYS.tasks, start, '+', 'LIMIT', 0, 1)[1]
  if not first then
    return reply
  end
  local task = string.match(first, '^[^%z]*')
  local after = '(' .. task .. '\1'
  reply[#reply + 1] = task
  reply[#reply + 1] = redis.call('ZLEXCOUNT', KEYS.tasks, '[' .. task .. '\0', after)
  start = after
end
reply[1] = start
return reply
