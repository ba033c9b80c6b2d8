-- Spend one of a number of retries; each may be asked for again.
--
-- KEYS     1 budget
-- ARGV     1 what is spent, a task and a number  2 most  3 for how long to remember it (s)
-- Returns  1, or 0 when nothing is left
-- Repeat   the same
-- @include types

expect_type(KEYS[1], 'set')
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then
  return 1
end
if redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
