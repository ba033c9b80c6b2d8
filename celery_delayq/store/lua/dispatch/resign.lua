-- Leave the duty to the dispatcher that looks next.
--
-- KEYS     1 clock
-- ARGV     1 the dispatcher
-- Returns  1 when it was on duty, else 0
-- Repeat   does nothing, and returns 0

if redis.call('HGET', KEYS[1], 'duty') ~= ARGV[1] then
  return 0
end
return redis.call('HDEL', KEYS[1], 'duty')
