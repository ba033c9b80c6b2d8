-- Push messages to ready lists, and wake who waits for them.
--
-- KEYS     wake  totals  ready_lists…
-- ARGV     messages…: for each message: which of KEYS is its ready list, the message
-- Returns  how many messages
-- Repeat   pushes them again
-- Roles    producer, worker, dispatcher
-- @include types
-- @include wake
-- @include totals

expect_all(FIRST.ready_lists, 'list')
for i = FIRST.messages, #ARGV, 2 do
  redis.call('LPUSH', KEYS[tonumber(ARGV[i])], ARGV[i + 1])
end
wake_consumers(KEYS.wake)
add_total(KEYS.totals, 'pushed', #ARGV / 2)
return #ARGV / 2
