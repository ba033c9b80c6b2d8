-- Store messages until they are due. A message that is due becomes ready at once.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  queues  wake  lanes_wake  limits
--          ready_lists…: all ready lists, if any message has a unique key
-- ARGV     queue  layout  wake_channel
--          max_scheduled: most entries that may be scheduled, 0 for no limit, -1 for retries, which
--            have no limit
--          messages…: for each message: id, due (ms, with '+' from now), place of its ready list in
--            KEYS, record, policy if its unique key is taken (see include/unique_policy.lua), ''
--            without a unique key
-- Returns  {now (ms, rounded up), a code for each message, then for each capital letter the id of
--          the other message, then for each 'S' and 'R' its record, '' if it was ready}. Codes: 's'
--          scheduled, 'r' ready, 'd' a duplicate, 'f' refused since the queue is full; about
--          another message with the unique key: 'S' and 'R' replaced it, 'K' kept it, 'E' refused
--          since it exists, 'O' not stored since it has replaced the message that is retried
-- Repeat   the same message again is a duplicate while it is scheduled, ready or leased
-- Roles    producer, worker, dispatcher
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

local time_us = now_us()
begin_batch(time_us, tonumber(ARGV.max_scheduled), FIRST.ready_lists)
local states, others, replaced = {}, {}, {}
for i = FIRST.messages, #ARGV, 5 do
  local due, list = due_of_text(ARGV[i + 1], time_us), KEYS[tonumber(ARGV[i + 2])]
  local code, other, record = store_message(ARGV[i], due, list, ARGV[i + 3], ARGV[i + 4])
  states[#states + 1], others[#others + 1], replaced[#replaced + 1] = code, other, record
end
end_batch(KEYS.next_due, KEYS.queues, ARGV.queue, ARGV.layout, ARGV.wake_channel, 'accepted')
if ARGV.max_scheduled == '-1' then
  add_total(TOTALS, 'retried', batch.scheduled + batch.ready)
end
for _, record in ipairs(replaced) do
  others[#others + 1] = record
end
return {math.ceil(time_us / 1000), table.concat(states), unpack(others)}
