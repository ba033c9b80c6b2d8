-- Look at a batch of the unique keys: each must have an owner. Repairing removes those of what is
-- gone, which are free all the same.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 waiting  8 running
-- ARGV     1 cursor  2 about how many to look at  3 '1' to repair  4… names left by an earlier call,
--          to look at instead
-- Returns  {next cursor, looked at, {names left}, then {kind, found, repaired,
--          some keys…}}
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
local repair = ARGV[3] == '1'
local page = {ARGV[1], {select(4, unpack(ARGV))}}
if #page[2] == 0 then
  page = names_in(redis.call('HSCAN', UNIQUE, ARGV[1], 'COUNT', ARGV[2]))
end
return look_at_each(page, function(key)
  if not has_owner(key) then
    note('idle_key', key, repair)
    if repair then
      redis.call('HDEL', UNIQUE, key)
    end
  end
end)
