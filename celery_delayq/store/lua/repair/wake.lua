-- Look whether something is ready and no marker wakes those who wait for it.
--
-- That is so for a moment whenever a consumer has taken the marker and not asked yet. What did not
-- move between two looks has nobody who comes for it. Nobody is to come to a paused queue.
--
-- KEYS     1 wake  2 control  3… ready lists
-- ARGV     1 queue  2 what an earlier look returned, to repair it if nothing has moved since
-- Returns  a sign of what is the next to run in each list; '' when nothing is wrong
-- Repeat   the same, '' once repaired
-- @include types
-- @include room
-- @include wake

expect_type(KEYS[2], 'hash')
local next_ones = {}
for i = 3, #KEYS do
  expect_type(KEYS[i], 'list')
  -- A few large ones are enough.
  next_ones[i - 2] = room > 0 and redis.call('LINDEX', KEYS[i], -1) or ''
  take_room(#next_ones[i - 2])
end
if redis.call('EXISTS', KEYS[1]) == 1 or #table.concat(next_ones) == 0
  or redis.call('HEXISTS', KEYS[2], 'q' .. ARGV[1]) == 1
then
  return ''
end
local sign = redis.sha1hex(table.concat(next_ones, '\n'))
if ARGV[2] == sign then
  wake(KEYS[1])
end
return sign
