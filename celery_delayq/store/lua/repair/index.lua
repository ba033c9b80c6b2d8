-- Look at a batch of the index by task: each member must belong to an entry with its task and due.
-- A repair removes other members. A record that is not scheduled gets back the due of its member.
--
-- KEYS     due  entries  tasks  next_due  lanes
-- ARGV     queue  cursor
--          page_size: about how many to look at
--          repair: '1' to repair
--          members_left…: members left by an earlier call, to look at instead
-- Returns  {next cursor, looked at, {members left}, then for each kind {kind, found,
--          repaired, some ids…}}
-- Repeat   finds what is left
-- Roles    operator
-- @include clock
-- @include types
-- @include byte_limit
-- @include record
-- @include dispatch/next_due
-- @include repair/report
-- @include repair/page

expect_types(FIRST.due, 'zset', 'hash', 'zset')
local repair = ARGV.repair == '1'

-- Schedule a record again at the due of its member. Without repair, repair/entries.lua reports the
-- record.
local function schedule_again(due, id)
  if repair then
    note_drift('unscheduled', id, true)
    -- Without the repair the entry stays for ever, so a full server must accept it: see
    -- dispatch/promote.lua.
    redis.call('ZREM', KEYS.next_due, '')
    redis.call('ZADD', KEYS.due, due, id)
    plan_next_look(KEYS.next_due, ARGV.queue, KEYS.due, KEYS.lanes, now_us())
  end
end

local left = {select(FIRST.members_left, unpack(ARGV))}
return look_at_each(left, KEYS.tasks, ARGV.cursor, ARGV.page_size, function(member)
  local task, told, id = string.match(member, '^([^%z]*)%z(%d+)%z(.*)$')
  local data = id and redis.call('HGET', KEYS.entries, id)
  take_bytes(data and #data or 0)
  if not data then
    note_drift('misindexed', id or member, repair, 'ZREM', KEYS.tasks, member)
  else
    local due = redis.call('ZSCORE', KEYS.due, id)
    local priority, _, its_task = read_record(data)
    -- The member of an unreadable record cannot be checked.
    local right = due and task_member(task, due_at(due), id) or member
    if priority and (its_task ~= task or member ~= right) then
      note_drift('misindexed', id, repair, 'ZREM', KEYS.tasks, member)
    elseif not due then
      schedule_again(told, id)
    end
  end
end)
