-- Look at a batch of ready or leased messages: DUPLICATE_IDS must list a second message with the
-- same id. A repair adds it.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals
-- ARGV     state: 'waiting' or 'running', the messages to look at
--          cursor
--          page_size: about how many to look at
--          repair: '1' to repair
-- Returns  {next cursor, looked at, {}, then for each kind {kind, found, repaired, some ids…}}
-- Repeat   finds what is left
-- Roles    operator
-- @include types
-- @include tracking
-- @include repair/report
-- @include repair/state

expect_state()
local index = ARGV.state == 'running' and LEASED_INDEX or READY_INDEX
local page = redis.call('HSCAN', index, ARGV.cursor, 'COUNT', ARGV.page_size)
for i = 1, #page[2], 2 do
  check_duplicate(page[2][i], ARGV.repair == '1')
end
return report(page[1], #page[2] / 2)
