-- Look at a batch of the entries that are listed as paused and due: one that is scheduled must be
-- listed with its task and its due. Repairing removes wrong members: when the task goes on,
-- dispatch/promote.lua would give the entry that due.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals
-- ARGV     1 cursor  2 about how many to look at  3 '1' to repair  4… names left by an earlier call,
--          to look at instead
-- Returns  {next cursor, looked at, {names left}, then for each kind {kind, found, repaired,
--          some ids…}}
-- Repeat   finds what is left
-- @include types
-- @include room
-- @include record
-- @include tracking
-- @include repair/report
-- @include repair/page

expect_state()
local repair = ARGV[3] == '1'
local left = {select(4, unpack(ARGV))}
return look_at_each(left, PAUSED_DUE, ARGV[1], ARGV[2], function(member)
  local told_task, name = string.match(member, '^([^%z]*)%z%d+%z(.*)$')
  local score = tonumber(name and redis.call('ZSCORE', DUE, name) or nil)
  if not score then
    return -- dispatch/promote.lua removes members without an entry
  end
  local data = redis.call('HGET', ENTRIES, name)
  take_room(data and #data or 0)
  local priority, _, task = read_record(data)
  -- Of an unreadable record nothing is known that a member could be wrong about.
  local right = score >= PAUSED_OFFSET
    and task_member(priority and task or told_task, due_at(score), name)
  if member ~= right then
    note('misplaced_paused', name, repair, 'ZREM', PAUSED_DUE, member)
  end
end)
