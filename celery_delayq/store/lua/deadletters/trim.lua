-- Forget the oldest dead letters: those that died too long ago, and those that are too many.
--
-- KEYS     1 dead  2 dead_at
-- ARGV     1 the longest time that a dead letter is kept (ms), 0 for ever  2 the most dead letters, 0 for no
--          limit  3 most to forget now
-- Returns  {too old, too many}: how many were forgotten
-- Repeat   goes on
-- @include clock
-- @include types

expect_types(1, 'hash', 'zset')
local age, most, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local function forget(ids)
  if #ids > 0 then
    redis.call('HDEL', KEYS[1], unpack(ids))
    redis.call('ZREM', KEYS[2], unpack(ids))
  end
  return #ids
end

local old, many = 0, 0
if age > 0 then
  old = forget(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf',
    string.format('(%.0f', to_ms(now_us()) - age), 'LIMIT', 0, limit))
end
if most > 0 then
  local surplus = math.min(redis.call('ZCARD', KEYS[2]) - most, limit - old)
  if surplus > 0 then
    many = forget(redis.call('ZRANGE', KEYS[2], 0, surplus - 1))
  end
end
return {old, many}
