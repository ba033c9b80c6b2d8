-- Wake consumers of a queue in which something is ready, of which they may not know: stock
-- producers do not wake them.
--
-- KEYS     wake  control  quarantined  quarantine_turn  ready_lists…
-- ARGV     queue
-- Returns  1 when something may be taken, else 0
-- Repeat   the same
-- Roles    worker, dispatcher
-- @include wake

if redis.call('HEXISTS', KEYS.control, 'q' .. ARGV.queue) == 1 then
  return 0
end
local there = redis.call('EXISTS', KEYS.quarantined) > redis.call('EXISTS', KEYS.quarantine_turn)
for i = FIRST.ready_lists, #KEYS do
  there = there or redis.call('EXISTS', KEYS[i]) == 1
end
if there then
  -- A full server must let it pass, see dispatch/promote.lua.
  redis.call('EXPIRE', KEYS.wake, 60)
  wake_consumers(KEYS.wake)
end
return there and 1 or 0
