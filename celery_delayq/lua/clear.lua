-- Forget all scheduled entries of a queue; its dead letters stay.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 queues
-- ARGV     1 queue  2 '1' when the queue itself was deleted
-- Returns  how many there were
-- Repeat   0

local count = redis.call('ZCARD', KEYS[1])
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[1])
if ARGV[2] == '1' then
  redis.call('HDEL', KEYS[5], ARGV[1])
end
return count
