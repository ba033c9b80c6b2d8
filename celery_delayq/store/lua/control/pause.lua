-- Pause or resume a queue or a task name. Consumers see that the revision has changed.
--
-- KEYS     control  next_due  answer
--          due_of_queues…: due of each queue that may have entries in paused_due
-- ARGV     field: 'q' and the queue, or 't' and the task
--          pauses: '1' to pause
--          wake_channel  queues…
-- Returns  '1', or '0' if nothing changed
-- Repeat   the same, for a minute
-- Roles    operator
-- @include clock
-- @include dispatch/next_due
-- @include idempotent_reply

return answer_once(KEYS.answer, function()
  local time_us = now_us()
  local changed
  -- Pausing helps when a server is full, so the server must accept it: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.next_due, '')
  if ARGV.pauses == '1' then
    changed = redis.call('HSETNX', KEYS.control, ARGV.field, string.format('%.0f', to_ms(time_us)))
  else
    changed = redis.call('HDEL', KEYS.control, ARGV.field)
    for i = FIRST.queues, #ARGV do
      -- The next-due index has only queues with scheduled entries.
      if redis.call('EXISTS', KEYS[i + (FIRST.due_of_queues - FIRST.queues)]) == 1 then
        redis.call('ZADD', KEYS.next_due, 'LT', to_ms(time_us), ARGV[i])
      end
      -- The hint also wakes workers, which take ready messages.
      hint_look(ARGV.wake_channel, ARGV[i], to_ms(time_us), time_us)
    end
  end
  if changed == 1 then
    local revision = read_whole(redis.call('HGET', KEYS.control, 'revision')) or 0
    redis.call('HSET', KEYS.control, 'revision', string.format('%.0f', revision + 1))
  end
  return tostring(changed)
end)
