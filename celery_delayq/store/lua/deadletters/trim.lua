-- Delete the oldest dead letters: the ones beyond the longest age, then the ones beyond the limit.
--
-- KEYS     dead  dead_at
-- ARGV     max_age_ms: longest age of a dead letter (ms), 0 for no limit
--          max_dead_letters: most dead letters, 0 for no limit
--          most_now: most to delete in this call
-- Returns  {too old, too many}: how many were deleted
-- Repeat   goes on
-- Roles    worker, dispatcher
-- @include clock
-- @include types

expect_types(FIRST.dead, 'hash', 'zset')
local age, most, limit = tonumber(ARGV.max_age_ms), tonumber(ARGV.max_dead_letters),
  tonumber(ARGV.most_now)

local function forget(ids)
  if #ids > 0 then
    redis.call('HDEL', KEYS.dead, unpack(ids))
    redis.call('ZREM', KEYS.dead_at, unpack(ids))
  end
  return #ids
end

local old, many = 0, 0
if age > 0 then
  old = forget(redis.call('ZRANGEBYSCORE', KEYS.dead_at, '-inf',
    string.format('(%.0f', to_ms(now_us()) - age), 'LIMIT', 0, limit))
end
if most > 0 then
  local surplus = math.min(redis.call('ZCARD', KEYS.dead_at) - most, limit - old)
  if surplus > 0 then
    many = forget(redis.call('ZRANGE', KEYS.dead_at, 0, surplus - 1))
  end
end
return {old, many}
