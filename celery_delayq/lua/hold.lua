-- Note that a worker holds a message that it has popped, in kombu's unacked keys.
--
-- KEYS     1 unacked  2 unacked_index
-- ARGV     1 delivery tag  2 since when (s since 1970, kombu's clock)  3 the message as kombu
--          keeps it: JSON of [message, exchange, routing key]
-- Returns  1
-- Repeat   changes nothing

-- A full server must take this: the message is nowhere else. A write that is never refused, and
-- changes nothing, comes first, and the server lets those after it pass.
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
return 1
