-- Give up the duty, so that the dispatcher that looks next takes it.
--
-- KEYS     clock
-- ARGV     dispatcher
-- Returns  1 if the dispatcher was on duty, else 0
-- Repeat   does nothing, and returns 0
-- Roles    worker, dispatcher

if redis.call('HGET', KEYS.clock, 'duty') ~= ARGV.dispatcher then
  return 0
end
return redis.call('HDEL', KEYS.clock, 'duty')
