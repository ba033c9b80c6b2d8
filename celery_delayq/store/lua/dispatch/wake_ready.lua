-- Wake consumers of a queue that has ready messages, or lanes that may go. Consumers may not know
-- of them: stock producers do not wake consumers, and a consumer that was woken may have died.
--
-- KEYS     wake  control  quarantined  quarantine_turn  lanes  lanes_wake  freed_lanes
--          ready_lists…
-- ARGV     queue
-- Returns  1 if a message may be taken, else 0
-- Repeat   the same
-- Roles    worker, dispatcher
-- @include clock
-- @include wake

if redis.call('HEXISTS', KEYS.control, 'q' .. ARGV.queue) == 1 then
  return 0
end

-- Whether a reply counts some members. A key of another type must not keep ready messages from
-- consumers.
local function has_some(reply)
  return type(reply) == 'number' and reply > 0
end

local there = redis.call('EXISTS', KEYS.quarantined) > redis.call('EXISTS', KEYS.quarantine_turn)
for i = FIRST.ready_lists, #KEYS do
  there = there or redis.call('EXISTS', KEYS[i]) == 1
end
local first, last = '[' .. ARGV.queue .. '\0', '(' .. ARGV.queue .. '\1'
local may_lane_go = redis.call('EXISTS', KEYS.lanes) == 1
  and (has_some(redis.pcall('ZCOUNT', KEYS.lanes, '-inf', now_us()))
    or has_some(redis.pcall('ZLEXCOUNT', KEYS.freed_lanes, first, last)))
if there or may_lane_go then
  -- A full server must accept the script: see dispatch/promote.lua.
  redis.call('EXPIRE', KEYS.wake, 60)
  -- For lanes too: a consumer that has not heard of limits waits for this list only.
  wake_consumers(KEYS.wake)
end
if may_lane_go then
  wake_consumers(KEYS.lanes_wake)
end
return (there or may_lane_go) and 1 or 0
