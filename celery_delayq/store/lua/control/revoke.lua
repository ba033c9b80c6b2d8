-- Remember what was revoked, so that workers that start later refuse it too. Consumers see that
-- the revision has changed.
--
-- KEYS     1 control  2 revoked
-- ARGV     1 for how long to remember (ms)  2… what: 'i' and an id, or 's' and a stamp in JSON
-- Returns  how many are remembered
-- Repeat   the same
-- @include clock
-- @include types

expect_types(1, 'hash', 'zset')
local now = to_ms(now_us())
-- Small, and tasks that are not to run would: a full server must let it pass, see dispatch/promote.lua.
redis.call('ZREM', KEYS[2], '')
-- What is new comes last, whatever the clock says: consumers read from the last one on that they know.
local newest = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
local at = math.max(now, tonumber(newest) or now)
for i = 2, #ARGV do
  redis.call('ZADD', KEYS[2], at, ARGV[i])
end
for _, old in ipairs(redis.call(
  'ZRANGEBYSCORE', KEYS[2], '-inf', now - tonumber(ARGV[1]), 'LIMIT', 0, 1000)) do
  redis.call('ZREM', KEYS[2], old)
end
local revision = read_whole(redis.call('HGET', KEYS[1], 'revision')) or 0
redis.call('HSET', KEYS[1], 'revision', string.format('%.0f', revision + 1))
return redis.call('ZCARD', KEYS[2])
