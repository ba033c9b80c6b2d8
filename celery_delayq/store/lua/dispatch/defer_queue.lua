-- Look at a queue later: promoting from it failed, and the others must not wait behind it.
--
-- KEYS     1 next_due
-- ARGV     1 queue  2 how much later (ms)  3… queues that the dispatcher leaves to others
-- Returns  {now (µs), queue or '', due (ms) or ''}
-- Repeat   defers again from then
-- @include clock
-- @include dispatch/next_due

local now = now_us()
redis.call('ZADD', KEYS[1], 'XX', to_ms(now) + tonumber(ARGV[2]), ARGV[1])
return next_due_head(KEYS[1], now, 3)
