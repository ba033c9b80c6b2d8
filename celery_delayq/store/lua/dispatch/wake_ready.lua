-- Wake consumers of a queue that has ready messages. They may not know of these messages, since
-- stock producers do not wake consumers.
--
-- KEYS     wake  control  quarantined  quarantine_turn  ready_lists…
-- ARGV     queue
-- Returns  1 if a message may be taken, else 0
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
  -- A full server must accept the script: see dispatch/promote.lua.
  redis.call('EXPIRE', KEYS.wake, 60)
  wake_consumers(KEYS.wake)
end
return there and 1 or 0
