-- Store messages until they are due; those whose moment has passed go to ready at once.
--
-- KEYS     due  entries  tasks  paused_due  unique  duplicate_ids  ready_index  leased_index
--          totals  next_due  queues  wake
--          ready_lists…: all lists of what is ready, if there is any unique key
-- ARGV     queue  layout  wake_channel
--          max_scheduled: most entries that may be scheduled, 0 for no limit, -1 for no limit since
--            they are retries
--          messages…: for each message: id, due (ms, '+' before it when it counts from now), which
--            of KEYS is its ready list, record, what to do when its unique key is taken (see
--            include/unique_policy.lua), '' without one
-- Returns  {now (ms, rounded up), a code for each message, then the id that each capital letter
--          is about, then for each 'S' and 'R' the record of that, '' when it had been ready}: 's'
--          scheduled, 'r' ready, 'd' a duplicate, 'f' refused since the queue is full; 'S' and 'R'
--          the same in place of another, 'K' kept the other, 'E' refused since there is another,
--          'O' not stored since another has replaced what it is a retry of
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
-- @include dispatch/next_due
-- @include add_batch

local clock = now_us()
begin_batch(clock, tonumber(ARGV.max_scheduled), KEYS.wake, FIRST.ready_lists)
local states, others, replaced = {}, {}, {}
for i = FIRST.messages, #ARGV, 5 do
  local due, list = due_of_text(ARGV[i + 1], clock), KEYS[tonumber(ARGV[i + 2])]
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
return {math.ceil(clock / 1000), table.concat(states), unpack(others)}
