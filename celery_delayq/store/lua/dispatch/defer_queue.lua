-- Plan the next look at a queue later: promoting from it failed, and other queues must not wait.
--
-- KEYS     next_due
-- ARGV     queue
--          delay_ms: how much later (ms)
--          other_queues…: queues that the dispatcher leaves to others
-- Returns  {now (µs), queue or '', due (ms) or ''}
-- Repeat   defers again from then
-- Roles    worker, dispatcher
-- @include clock
-- @include dispatch/next_due

local now = now_us()
redis.call('ZADD', KEYS.next_due, 'XX', to_ms(now) + tonumber(ARGV.delay_ms), ARGV.queue)
return next_due_head(KEYS.next_due, now, FIRST.other_queues)
