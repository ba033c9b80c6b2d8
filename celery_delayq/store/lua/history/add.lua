-- Note runs whose messages were acknowledged before they began.
--
-- The number of the last call stands in the key that tells that the process lives. Where that has
-- expired, a repeated call is not known.
--
-- KEYS     1 history  2 worker_id
-- ARGV     1 about how many runs to keep  2 number of this call of the process  3 lines,
--          each with a line feed behind it
-- Returns  how many were noted
-- Repeat   0
-- @include history

local last = tonumber(redis.call('GET', KEYS[2]) or 0)
if last and last >= tonumber(ARGV[2]) then
  return 0
end
redis.pcall('SET', KEYS[2], ARGV[2], 'XX', 'KEEPTTL')
local noted = 0
for line in string.gmatch(ARGV[3], '([^\n]*)\n') do
  add_run(KEYS[1], ARGV[1], line)
  noted = noted + 1
end
return noted
