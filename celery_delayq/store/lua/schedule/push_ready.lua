-- Push messages to ready lists, and wake who waits for them.
--
-- KEYS     1 wake  2 totals  3… ready lists
-- ARGV     1… for each message: which of KEYS is its ready list, the message
-- Returns  how many messages
-- Repeat   pushes them again
-- @include types
-- @include wake
-- @include totals

expect_all(3, 'list')
for i = 1, #ARGV, 2 do
  redis.call('LPUSH', KEYS[tonumber(ARGV[i])], ARGV[i + 1])
end
wake(KEYS[1])
add_total(KEYS[2], 'pushed', #ARGV / 2)
return #ARGV / 2
