-- Pause a queue or a task name, or let it go on. Consumers see that the revision has changed.
--
-- KEYS     1 control  2 next_due  3 answer  4… due, of each queue that may have something paused_due
-- ARGV     1 field: 'q' and the queue, or 't' and the task  2 '1' to pause  3 wake channel
--          4… those queues
-- Returns  '1', or '0' when it was so already
-- Repeat   the same, for a minute
-- @include clock
-- @include dispatch/next_due
-- @include idempotent_reply

return answer_once(KEYS[3], function()
  local clock = now_us()
  local changed
  -- Small, and most wanted on a full server, which must let it pass: see dispatch/promote.lua.
  redis.call('ZREM', KEYS[2], '')
  if ARGV[2] == '1' then
    changed = redis.call('HSETNX', KEYS[1], ARGV[1], string.format('%.0f', to_ms(clock)))
  else
    changed = redis.call('HDEL', KEYS[1], ARGV[1])
    for i = 4, #ARGV do
      -- The next-due index names no queue that has nothing scheduled.
      if redis.call('EXISTS', KEYS[i]) == 1 then
        redis.call('ZADD', KEYS[2], 'LT', to_ms(clock), ARGV[i])
      end
      -- It also wakes workers, for messages that are ready.
      hint(ARGV[3], ARGV[i], to_ms(clock), clock)
    end
  end
  if changed == 1 then
    local revision = read_whole(redis.call('HGET', KEYS[1], 'revision')) or 0
    redis.call('HSET', KEYS[1], 'revision', string.format('%.0f', revision + 1))
  end
  return tostring(changed)
end)
