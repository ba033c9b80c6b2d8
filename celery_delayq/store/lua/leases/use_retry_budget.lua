-- Spend one of a number of retries; each may be asked for again.
--
-- KEYS     budget
-- ARGV     retry: what is spent, a task and a number
--          most_retries
--          remember_s: for how long to remember it (s)
-- Returns  1, or 0 when nothing is left
-- Repeat   the same
-- Roles    worker
-- @include types

expect_type(KEYS.budget, 'set')
if redis.call('SISMEMBER', KEYS.budget, ARGV.retry) == 1 then
  return 1
end
if redis.call('SCARD', KEYS.budget) >= tonumber(ARGV.most_retries) then
  return 0
end
redis.call('SADD', KEYS.budget, ARGV.retry)
redis.call('EXPIRE', KEYS.budget, ARGV.remember_s)
return 1
