-- Look at a batch of what is known of messages that are ready, or held: see repair/entries.lua. What
-- is repaired is listed as a duplicate, and as owner of its unique key.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 waiting  8 running
-- ARGV     1 'waiting' or 'running', to look through  2 cursor  3 about how many to look at
--          4 '1' to repair  5… names left by an earlier call, to look at instead
-- Returns  {next cursor, looked at, {names left}, then for each kind {kind, found, repaired,
--          some ids…}}
-- Repeat   finds what is left
-- @include types
-- @include room
-- @include record
-- @include label
-- @include tracking
-- @include repair_report
-- @include repair_state
-- @include repair_page

expect_state()
local index = ARGV[1] == 'running' and RUNNING or WAITING
local repair = ARGV[4] == '1'
local page = {ARGV[2], {select(5, unpack(ARGV))}}
if #page[2] == 0 then
  page = names_in(redis.call('HSCAN', index, ARGV[2], 'COUNT', ARGV[3]))
end
return look_at_each(page, function(name)
  local mark, message_id, _, unique = read_tracked(redis.call('HGET', index, name))
  if not mark then
    return -- it has gone since
  end
  check_duplicate(name, repair)
  if mark == '' and string.sub(unique, 1, 1) == 'd' then
    check_key(string.match(name, '^[^%z]*'), message_id, unique, repair)
  end
end)
