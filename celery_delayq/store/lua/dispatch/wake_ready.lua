-- Wake consumers of a queue in which something is ready, of which they may not know: stock producers
-- leave no sign.
--
-- KEYS     1 wake  2 control  3 quarantined  4 quarantine_turn  5… ready lists
-- ARGV     1 queue
-- Returns  1 when something may be taken, else 0
-- Repeat   the same
-- @include wake

if redis.call('HEXISTS', KEYS[2], 'q' .. ARGV[1]) == 1 then
  return 0
end
local there = redis.call('EXISTS', KEYS[3]) > redis.call('EXISTS', KEYS[4])
for i = 5, #KEYS do
  there = there or redis.call('EXISTS', KEYS[i]) == 1
end
if there then
  -- A full server must let it pass, see dispatch/promote.lua.
  redis.call('EXPIRE', KEYS[1], 60)
  wake(KEYS[1])
end
return there and 1 or 0
