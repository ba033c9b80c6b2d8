-- Push messages to ready lists, and wake their consumers.
--
-- KEYS     wake  totals  ready_lists…
-- ARGV     tasks: how many of the messages are tasks
--          messages…: for each message: place of its ready list in KEYS, the message
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
local number = (#ARGV - 1) / 2
-- A queue without tasks may be a temporary queue for replies. Its sender does not know that, and
-- nothing would delete its counters.
if ARGV.tasks ~= '0' or redis.call('EXISTS', KEYS.totals) == 1 then
  add_total(KEYS.totals, 'pushed', number)
end
return number
