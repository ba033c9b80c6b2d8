-- Note that a worker holds a message that it has popped, and take more of the same list for it.
--
-- KEYS     1 ready list  2 unacked  3 unacked_index
-- ARGV     1 since when (s since 1970, kombu's clock)  2 what stands behind a message where kombu
--          keeps it: ', exchange, routing key]' in JSON  3 the message  4… its delivery tag, then
--          one for each message more that is wanted
-- Returns  the further messages, the next to run first
-- Repeat   the same tags again return the same messages

local function hold(tag, message)
  redis.call('HSET', KEYS[2], tag, '[' .. message .. ARGV[2])
  redis.call('ZADD', KEYS[3], ARGV[1], tag)
end

local repeated = redis.call('HEXISTS', KEYS[2], ARGV[4]) == 1
-- A full server must take this: the message is nowhere else. A write that is never refused, and
-- changes nothing, comes first, and the server lets those after it pass.
redis.call('ZREM', KEYS[3], '')
hold(ARGV[4], ARGV[3])
local more = {}
for i = 5, #ARGV do
  local message
  if repeated then
    local held = redis.call('HGET', KEYS[2], ARGV[i])
    message = held and string.sub(held, 2, -#ARGV[2] - 1)
  else
    message = redis.call('RPOP', KEYS[1])
    if message then
      hold(ARGV[i], message)
    end
  end
  if not message then
    break
  end
  more[#more + 1] = message
end
return more
