-- Put messages that were taken and not started back where they were.
--
-- KEYS     1 ready list  2 unacked  3 unacked_index
-- ARGV     1 what stands behind a message where kombu keeps it  2… delivery tags, in the order in
--          which they were taken
-- Returns  how many there were
-- Repeat   0

local count = 0
redis.call('ZREM', KEYS[3], '')
for i = #ARGV, 2, -1 do
  local held = redis.call('HGET', KEYS[2], ARGV[i])
  if held then
    redis.call('RPUSH', KEYS[1], string.sub(held, 2, -#ARGV[1] - 1))
    redis.call('HDEL', KEYS[2], ARGV[i])
    count = count + 1
  end
  redis.call('ZREM', KEYS[3], ARGV[i])
end
return count
