-- Look at a batch of PAUSED_DUE: the member of a scheduled entry must have its task and its due. A
-- repair removes a wrong member: dispatch/promote.lua would give the entry the due of the member.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals
-- ARGV     cursor
--          page_size: about how many to look at
--          repair: '1' to repair
--          names_left…: names left by an earlier call, to look at instead
-- Returns  {next cursor, looked at, {names left}, then for each kind {kind, found, repaired,
--          some ids…}}
-- Repeat   finds what is left
-- Roles    operator
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include repair/report
-- @include repair/page

expect_state()
local repair = ARGV.repair == '1'
local left = {select(FIRST.names_left, unpack(ARGV))}
return look_at_each(left, PAUSED_DUE, ARGV.cursor, ARGV.page_size, function(member)
  local told_task, name = string.match(member, '^([^%z]*)%z%d+%z(.*)$')
  local score = tonumber(name and redis.call('ZSCORE', DUE, name) or nil)
  if not score then
    return -- dispatch/promote.lua removes members without an entry
  end
  local data = redis.call('HGET', ENTRIES, name)
  take_bytes(data and #data or 0)
  local priority, _, task = read_record(data)
  -- The task of an unreadable record cannot be checked.
  local right = score >= PAUSED_OFFSET
    and task_member(priority and task or told_task, due_at(score), name)
  if member ~= right then
    note_drift('misplaced_paused', name, repair, 'ZREM', PAUSED_DUE, member)
  end
end)
