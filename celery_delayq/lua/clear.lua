-- Forget all scheduled entries of a queue; its dead letters stay.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda
-- ARGV     1 queue
-- Returns  how many there were
-- Repeat   0

local count = redis.call('ZCARD', KEYS[1])
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[1])
return count
