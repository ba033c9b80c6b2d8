-- Remember revocations, so that workers that start later refuse the tasks too. Consumers see that
-- the revision has changed.
--
-- KEYS     control  revoked
-- ARGV     remember_ms: for how long to remember (ms)
--          revocations…: each 'i' and an id, or 's' and a stamp in JSON
-- Returns  number of remembered revocations
-- Repeat   the same
-- Roles    worker
-- @include clock
-- @include types

expect_types(FIRST.control, 'hash', 'zset')
local now = to_ms(now_us())
-- Revoked tasks must not run, so a full server must accept the script: see dispatch/promote.lua.
redis.call('ZREM', KEYS.revoked, '')
-- A new revocation comes last, even if the clock was set back: consumers read on from the last one
-- that they know.
local newest = redis.call('ZRANGE', KEYS.revoked, -1, -1, 'WITHSCORES')[2]
local at = math.max(now, tonumber(newest) or now)
for i = FIRST.revocations, #ARGV do
  redis.call('ZADD', KEYS.revoked, at, ARGV[i])
end
for _, old in ipairs(redis.call(
  'ZRANGEBYSCORE', KEYS.revoked, '-inf', now - tonumber(ARGV.remember_ms), 'LIMIT', 0, 1000)) do
  redis.call('ZREM', KEYS.revoked, old)
end
local revision = read_whole(redis.call('HGET', KEYS.control, 'revision')) or 0
redis.call('HSET', KEYS.control, 'revision', string.format('%.0f', revision + 1))
return redis.call('ZCARD', KEYS.revoked)
