-- Store messages that were exported as schedule/add.lua does, and tell a repeat what became of them.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 queues  12 wake  13 answer  14… ready lists;
--          all lists of what is ready, if there is any unique key
-- ARGV     1 queue  2 layout of the queue  3 wake channel  4 most entries that may be scheduled, 0
--          for no limit  5… for each message: id, due (ms, '+' before it when it counts from now),
--          which of KEYS is its ready list, record, what to do when its unique key is taken (see
--          include/unique_policy.lua), '' without one
-- Returns  a code for each message, as in schedule/add.lua
-- Repeat   the same, for a minute
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
-- @include idempotent_reply

return answer_once(KEYS[13], function()
  local clock = now_us()
  begin_puts(clock, tonumber(ARGV[4]), KEYS[12], 14)
  local codes = {}
  for i = 5, #ARGV, 5 do
    local list = KEYS[tonumber(ARGV[i + 2])]
    codes[#codes + 1] = (put(ARGV[i], due_of(ARGV[i + 1], clock), list, ARGV[i + 3], ARGV[i + 4]))
  end
  end_puts(KEYS[10], KEYS[11], ARGV[1], ARGV[2], ARGV[3], 'accepted')
  return table.concat(codes)
end)
