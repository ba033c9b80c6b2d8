-- Pause a queue or a task name, or let it go on. Consumers see that the revision has changed.
--
-- KEYS     control  next_due  answer
--          due_of_queues…: of each queue that may have something paused_due
-- ARGV     field: 'q' and the queue, or 't' and the task
--          pauses: '1' to pause
--          wake_channel  queues…
-- Returns  '1', or '0' when it was so already
-- Repeat   the same, for a minute
-- Roles    operator
-- @include clock
-- @include dispatch/next_due
-- @include idempotent_reply

return answer_once(KEYS.answer, function()
  local clock = now_us()
  local changed
  -- Small, and most wanted on a full server, which must let it pass: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.next_due, '')
  if ARGV.pauses == '1' then
    changed = redis.call('HSETNX', KEYS.control, ARGV.field, string.format('%.0f', to_ms(clock)))
  else
    changed = redis.call('HDEL', KEYS.control, ARGV.field)
    for i = FIRST.queues, #ARGV do
      -- The next-due index names no queue that has nothing scheduled.
      if redis.call('EXISTS', KEYS[i + (FIRST.due_of_queues - FIRST.queues)]) == 1 then
        redis.call('ZADD', KEYS.next_due, 'LT', to_ms(clock), ARGV[i])
      end
      -- It also wakes workers, for messages that are ready.
      hint_look(ARGV.wake_channel, ARGV[i], to_ms(clock), clock)
    end
  end
  if changed == 1 then
    local revision = read_whole(redis.call('HGET', KEYS.control, 'revision')) or 0
    redis.call('HSET', KEYS.control, 'revision', string.format('%.0f', revision + 1))
  end
  return tostring(changed)
end)
