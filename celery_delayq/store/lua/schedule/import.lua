-- Store exported messages as schedule/add.lua does. A repeated call gets the same reply.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  queues  wake  lanes_wake  limits  answer
--          ready_lists…: all ready lists, if any message has a unique key
-- ARGV     queue  layout  wake_channel
--          max_scheduled: most entries that may be scheduled, 0 for no limit
--          messages…: for each message: id, due (ms, with '+' from now), place of its ready list in
--            KEYS, record, policy if its unique key is taken (see include/unique_policy.lua), ''
--            without a unique key
-- Returns  a code for each message, as in schedule/add.lua
-- Repeat   the same, for a minute
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
-- @include idempotent_reply

return answer_once(KEYS.answer, function()
  local time_us = now_us()
  begin_batch(time_us, tonumber(ARGV.max_scheduled), FIRST.ready_lists)
  local codes = {}
  for i = FIRST.messages, #ARGV, 5 do
    local list = KEYS[tonumber(ARGV[i + 2])]
    codes[#codes + 1] = (store_message(ARGV[i], due_of_text(ARGV[i + 1], time_us), list,
      ARGV[i + 3], ARGV[i + 4]))
  end
  end_batch(KEYS.next_due, KEYS.queues, ARGV.queue, ARGV.layout, ARGV.wake_channel, 'accepted')
  return table.concat(codes)
end)
