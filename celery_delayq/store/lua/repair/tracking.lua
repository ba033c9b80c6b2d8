-- Look at a batch of the messages that are ready, or held: a second message with the same id must
-- be listed as a duplicate. Repairing lists it.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals
-- ARGV     1 'waiting' or 'running', to look through  2 cursor  3 about how many to look at
--          4 '1' to repair
-- Returns  {next cursor, looked at, {}, then for each kind {kind, found, repaired, some ids…}}
-- Repeat   finds what is left
-- @include types
-- @include tracking
-- @include repair/report
-- @include repair/state

expect_state()
local index = ARGV[1] == 'running' and LEASED_INDEX or READY_INDEX
local page = redis.call('HSCAN', index, ARGV[2], 'COUNT', ARGV[3])
for i = 1, #page[2], 2 do
  check_duplicate(page[2][i], ARGV[4] == '1')
end
return tell(page[1], #page[2] / 2)
