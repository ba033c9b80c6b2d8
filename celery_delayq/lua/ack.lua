-- Forget a message that a worker held: it has run, or is not to run.
--
-- KEYS     1 unacked  2 unacked_index
-- ARGV     1 delivery tag
-- Returns  1, or 0 when it was not held any more
-- Repeat   0
-- (A script, since a full server refuses every command of a MULTI, even those that free memory.)

redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
