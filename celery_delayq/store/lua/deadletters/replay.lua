-- Replay dead letters: in one step each becomes scheduled or ready, and its dead letter is deleted.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  queues  wake  lanes_wake  limits  dead  dead_at  answer
--          ready_lists…: all ready lists; all KEYS but dead and dead_at are of the queue to which
--            the messages go
-- ARGV     queue  layout  wake_channel
--          dead_letters…: for each dead letter: its id, when it died (ms), the digest of the bytes
--            that the caller has read, the id of its task, due (ms, with '+' from now), place of
--            its ready list in KEYS, record, policy if its unique key is taken, '' without a unique
--            key
-- Returns  a code for each: 'd' done, 'k' another message has its unique key, 'c' it is another
--          dead letter by now, or has another message, 'u' there is none
-- Repeat   the same answer, for a minute
-- Roles    operator
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include entry_store
-- @include unique_policy
-- @with limits
-- @include limits/lanes
-- @end
-- @include dispatch/next_due
-- @include add_batch
-- @include dead_letter
-- @include idempotent_reply

return answer_once(KEYS.answer, function()
  local time_us = now_us()
  local now = to_ms(time_us)
  expect_types(FIRST.dead, 'hash', 'zset')
  begin_batch(time_us, 0, FIRST.ready_lists)
  -- Memory use stays, so a full server must accept the script: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.dead_at, '')

  local states = {}
  for i = FIRST.dead_letters, #ARGV, 8 do
    local id = ARGV[i]
    local state = dead_letter_state(KEYS.dead, KEYS.dead_at, id, ARGV[i + 1], ARGV[i + 2])
    if state == 'd' then
      local due, list = due_of_text(ARGV[i + 4], time_us), KEYS[tonumber(ARGV[i + 5])]
      local data, policy = ARGV[i + 6], ARGV[i + 7]
      if due <= now and policy == '' then
        -- The message is new, so no other can be the same message.
        local _, _, task, start = read_record(data)
        put_ready(list, KEYS.wake, due, now, data, task, start)
        batch.ready = batch.ready + 1
      elseif store_message(ARGV[i + 3], due, list, data, policy) == 'E' then
        state = 'k'
      end
    end
    if state == 'd' then
      -- Written before the dead letter is deleted, so a message is always in some key.
      write_batch()
      redis.call('HDEL', KEYS.dead, id)
      redis.call('ZREM', KEYS.dead_at, id)
    end
    states[#states + 1] = state
  end
  end_batch(KEYS.next_due, KEYS.queues, ARGV.queue, ARGV.layout, ARGV.wake_channel, 'replayed')
  return table.concat(states)
end)
