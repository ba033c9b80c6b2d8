-- Look whether something is ready and no marker wakes those who wait for it.
--
-- That is so for a moment whenever a consumer has taken the marker and not asked yet. What did not
-- move between two looks has nobody who comes for it.
--
-- KEYS     1 wake  2… ready lists
-- ARGV     1 what an earlier look returned, to mend it if nothing has moved since
-- Returns  a sign of what is the next to run in each list; '' when nothing is wrong
-- Repeat   the same, '' once mended
-- @include types
-- @include wake

local next_ones = {}
for i = 2, #KEYS do
  expect_type(KEYS[i], 'list')
  next_ones[i - 1] = redis.call('LINDEX', KEYS[i], -1) or ''
end
if redis.call('EXISTS', KEYS[1]) == 1 or #table.concat(next_ones) == 0 then
  return ''
end
local sign = redis.sha1hex(table.concat(next_ones, '\n'))
if ARGV[1] == sign then
  wake(KEYS[1])
end
return sign
