-- Forget all scheduled entries of a queue, and what waits to be delivered alone; its dead letters
-- stay.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 queues  6 wake  7 suspects  8 deliveries
-- ARGV     1 queue  2 '1' when the queue itself was deleted
-- Returns  {how many were scheduled, how many waited to be delivered alone}
-- Repeat   {0, 0}

local count = {redis.call('ZCARD', KEYS[1]), redis.call('LLEN', KEYS[7])}
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[7])
redis.call('ZREM', KEYS[4], ARGV[1])
if ARGV[2] == '1' then
  redis.call('HDEL', KEYS[5], ARGV[1])
  redis.call('UNLINK', KEYS[8])
end
return count
