-- Change the definitions of a limit, unless they have changed since they were read.
--
-- KEYS     limits  slots
-- ARGV     limit: name of the limit
--          of_code: the definition of the code that was read, '' for none
--          override: what people had set, '' for nothing
--          new_of_code: what to store in place of of_code, '' to remove it
--          new_override: what to store in place of override, '' to remove it
--          is_other_rate: '1' to let lanes in use go on without a burst
-- Returns  1, or 0 if other definitions are stored
-- Repeat   the same, and changes nothing
-- Roles    operator
-- @include clock
-- @include types

local of_code, override = unpack(read_typed('hash', 'HMGET', KEYS.limits, 'c' .. ARGV.limit,
  'o' .. ARGV.limit))
of_code, override = of_code or '', override or ''
local is_done = of_code == ARGV.new_of_code and override == ARGV.new_override
if not is_done and (of_code ~= ARGV.of_code or override ~= ARGV.override) then
  return 0
end
if not is_done then
  -- It comes first: a full server accepts what follows a first write.
  redis.call('HDEL', KEYS.limits, 'c' .. ARGV.limit, 'o' .. ARGV.limit)
  if ARGV.new_of_code ~= '' then
    redis.call('HSET', KEYS.limits, 'c' .. ARGV.limit, ARGV.new_of_code)
  end
  if ARGV.new_override ~= '' then
    redis.call('HSET', KEYS.limits, 'o' .. ARGV.limit, ARGV.new_override)
  end
  if ARGV.new_of_code .. ARGV.new_override == '' then
    redis.call('HDEL', KEYS.limits, 'r' .. ARGV.limit)
  elseif ARGV.is_other_rate == '1' then
    redis.call('HSET', KEYS.limits, 'r' .. ARGV.limit, string.format('%.0f', now_us()))
  end
end
if redis.call('EXISTS', KEYS.limits) == 0 then
  redis.call('UNLINK', KEYS.slots) -- no other call would forget them
end
return 1
