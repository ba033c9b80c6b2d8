-- Count the scheduled entries of each task, of some tasks a call.
--
-- KEYS     1 tasks
-- ARGV     1 where to begin, as for ZRANGEBYLEX  2 most tasks
-- Returns  {where the next ones begin, '' at the end, then task and entries of each…}
-- Repeat   reads only

local start, reply = ARGV[1], {''}
for _ = 1, tonumber(ARGV[2]) do
  local first = redis.call('ZRANGEBYLEX', KEYS[1], start, '+', 'LIMIT', 0, 1)[1]
  if not first then
    return reply
  end
  local task = string.match(first, '^[^%z]*')
  local after = '(' .. task .. '\1'
  reply[#reply + 1] = task
  reply[#reply + 1] = redis.call('ZLEXCOUNT', KEYS[1], '[' .. task .. '\0', after)
  start = after
end
reply[1] = start
return reply
