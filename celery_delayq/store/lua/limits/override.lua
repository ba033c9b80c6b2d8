-- Store what people set of a limit, unless its definitions have changed since they were read.
--
-- KEYS     limits
-- ARGV     limit: name of the limit
--          of_code: the definition of the code that was read, '' for none
--          override: what people had set, '' for nothing
--          definition: what they set now
--          is_other_rate: '1' to let lanes in use go on without a burst
-- Returns  1, or 0 if other definitions are stored
-- Repeat   the same, and changes nothing
-- Roles    operator
-- @include clock
-- @include types

local of_code, override = unpack(read_typed('hash', 'HMGET', KEYS.limits, 'c' .. ARGV.limit,
  'o' .. ARGV.limit))
if override == ARGV.definition then
  return 1
end
if (of_code or '') ~= ARGV.of_code or (override or '') ~= ARGV.override then
  return 0
end
redis.call('HSET', KEYS.limits, 'o' .. ARGV.limit, ARGV.definition)
if ARGV.is_other_rate == '1' then
  redis.call('HSET', KEYS.limits, 'r' .. ARGV.limit, string.format('%.0f', now_us()))
end
return 1
