-- Store messages until they are due; those whose moment has passed go to ready at once.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 queues  12 wake  13… ready lists; all lists of
--          what is ready, if there is any unique key
-- ARGV     1 queue  2 layout of the queue  3 wake channel  4 most entries that may be scheduled, 0
--          for no limit, -1 for no limit since they are retries  5… for each message: id, due (ms, '+' before it when it counts from now),
--          which of KEYS is its ready list, record, what to do when its unique key is taken (see
--          include/unique_policy.lua), '' without one
-- Returns  {now (ms, rounded up), a code for each message, then the id that each capital letter
--          is about, then for each 'S' and 'R' the record of that, '' when it had been ready}: 's'
--          scheduled, 'r' ready, 'd' a duplicate, 'f' refused since the queue is full; 'S' and 'R'
--          the same in place of another, 'K' kept the other, 'E' refused since there is another,
--          'O' not stored since another has replaced what it is a retry of
-- Repeat   the same message again is a duplicate while it waits or is held
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
begin_puts(clock, tonumber(ARGV[4]), KEYS[12], 13)
local states, others, replaced = {}, {}, {}
for i = 5, #ARGV, 5 do
  local due, list = due_of(ARGV[i + 1], clock), KEYS[tonumber(ARGV[i + 2])]
  local code, other, record = put(ARGV[i], due, list, ARGV[i + 3], ARGV[i + 4])
  states[#states + 1], others[#others + 1], replaced[#replaced + 1] = code, other, record
end
end_puts(KEYS[10], KEYS[11], ARGV[1], ARGV[2], ARGV[3], 'accepted')
if ARGV[4] == '-1' then
  add_total(TOTALS, 'retried', putting.scheduled + putting.ready)
end
for _, record in ipairs(replaced) do
  others[#others + 1] = record
end
return {math.ceil(clock / 1000), table.concat(states), unpack(others)}
