-- Use one retry of a budget. A caller may repeat the call for the same retry.
--
-- KEYS     budget
-- ARGV     retry: name of the retry, a task and a number
--          most_retries
--          remember_s: for how long to remember it (s)
-- Returns  1, or 0 if the budget is used up
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
