-- Look at a batch of the index by task: each member must belong to an entry, with its task and
-- its due. Repairing removes those that do not; a record that is not in the schedule gets back the
-- due that its member tells.
--
-- KEYS     due  entries  tasks  next_due
-- ARGV     queue  cursor
--          page_size: about how many to look at
--          repair: '1' to repair
--          members_left…: members left by an earlier call, to look at instead
-- Returns  {next cursor, looked at, {members left}, then for each kind {kind, found,
--          repaired, some ids…}}
-- Repeat   finds what is left
-- Roles    operator
-- @include types
-- @include room
-- @include record
-- @include dispatch/next_due
-- @include repair/report
-- @include repair/page

expect_types(FIRST.due, 'zset', 'hash', 'zset')
local repair = ARGV.repair == '1'

-- The index knows the due of a record that is in the schedule no more. Where this only looks,
-- repair/entries.lua tells it.
local function schedule_again(due, id)
  if repair then
    note_drift('unscheduled', id, true)
    -- Without it the entry would stay for ever, so a full server must let it pass: see
    -- dispatch/promote.lua.
    redis.call('ZREM', KEYS.next_due, '')
    redis.call('ZADD', KEYS.due, due, id)
    plan_next_look(KEYS.next_due, ARGV.queue, KEYS.due)
  end
end

local left = {select(FIRST.members_left, unpack(ARGV))}
return look_at_each(left, KEYS.tasks, ARGV.cursor, ARGV.page_size, function(member)
  local task, told, id = string.match(member, '^([^%z]*)%z(%d+)%z(.*)$')
  local data = id and redis.call('HGET', KEYS.entries, id)
  take_room(data and #data or 0)
  if not data then
    note_drift('misindexed', id or member, repair, 'ZREM', KEYS.tasks, member)
  else
    local due = redis.call('ZSCORE', KEYS.due, id)
    local priority, _, its_task = read_record(data)
    -- Of an unreadable record nothing is known that a member could be wrong about.
    local right = due and task_member(task, due_at(due), id) or member
    if priority and (its_task ~= task or member ~= right) then
      note_drift('misindexed', id, repair, 'ZREM', KEYS.tasks, member)
    elseif not due then
      schedule_again(told, id)
    end
  end
end)
