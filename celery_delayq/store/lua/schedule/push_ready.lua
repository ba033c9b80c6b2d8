-- Push messages to ready lists, and wake their consumers.
--
-- KEYS     wake  totals  ready_lists…
-- ARGV     messages…: for each message: place of its ready list in KEYS, the message
-- Returns  number of messages
-- Repeat   pushes the messages again
-- Roles    producer, worker, dispatcher
-- @include clock
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
