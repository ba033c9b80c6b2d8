-- Look at a batch of what is known of messages that are ready, or held: see mend_entries.lua. What
-- is mended is listed as a twin, and as owner of its unique key.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running
-- ARGV     1 'waiting' or 'running', to look through  2 cursor  3 about how many to look at
--          4 '1' to mend
-- Returns  {next cursor, looked at, then for each kind {kind, found, mended, some ids…}}
-- Repeat   finds what is left
-- @include types
-- @include record
-- @include label
-- @include state
-- @include mend
-- @include mend_state

expect_state()
local index = ARGV[1] == 'running' and RUNNING or WAITING
local mend = ARGV[4] == '1'
local page = redis.call('HSCAN', index, ARGV[2], 'COUNT', ARGV[3])
for i = 1, #page[2], 2 do
  local name = page[2][i]
  local mark, nonce, _, unique = read_tracked(page[2][i + 1])
  check_twin(name, mend)
  if mark == '' and string.sub(unique, 1, 1) == 'd' then
    check_key(string.match(name, '^[^%z]*'), nonce, unique, mend)
  end
end
return tell(page[1], #page[2] / 2)
