-- Look at a batch of records: each must be readable, scheduled, and listed in its indexes.
--
-- Each record must be in the index by task. A record whose score or name says so must be in
-- PAUSED_DUE or its lane, or in DUPLICATE_IDS. A repair adds missing members. repair/schedule.lua repairs entries
-- that are not scheduled, and dispatch/promote.lua makes dead letters of unreadable ones.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals
-- ARGV     cursor
--          page_size: about how many to look at
--          repair: '1' to repair
-- Returns  {next cursor, looked at, {names that are not scheduled}, then for each kind {kind,
--          found, repaired, some ids…}}
-- Repeat   finds what is left
-- Roles    operator
-- @include types
-- @include byte_limit
-- @include scan
-- @include record
-- @include tracking
-- @include repair/report
-- @include repair/state

expect_state()
local repair = ARGV.repair == '1'
local lost = {}

-- Add a member to the index by task. Entries run without it, so a full server may refuse it.
local function add(member)
  return repair and type(redis.pcall('ZADD', TASKS, 0, member)) == 'number'
end

-- A held entry is in PAUSED_DUE or in its lane. In PAUSED_DUE it becomes due again if its task is
-- not paused.
local function check_held(name, member, step, due, data, start)
  local _, _, _, _, behind = read_label(data, start)
  local lane = read_lane(data, behind)
  local is_in_lane = lane and redis.call('ZSCORE', HELD, lane_member(lane, step, due, name))
  if not is_in_lane and not redis.call('ZSCORE', PAUSED_DUE, member) then
    note_drift(lane and 'lost_held' or 'lost_paused_due', name, repair)
    if repair then
      let_pass()
      redis.call('ZADD', PAUSED_DUE, 0, member)
    end
  end
end

local cursor, page = scan_hash(ENTRIES, ARGV.cursor, tonumber(ARGV.page_size))
for i = 1, #page, 2 do
  local name, data = page[i], page[i + 1]
  local priority, _, task, start = read_record(data)
  local due = redis.call('ZSCORE', DUE, name)
  if not priority then
    note_drift('unreadable', name, false)
  end
  if not due then
    lost[#lost + 1] = name
  elseif priority then
    local member = task_member(task, due_at(due), name)
    if not redis.call('ZSCORE', TASKS, member) then
      note_drift('unindexed', name, add(member))
    end
    if tonumber(due) >= PAUSED_OFFSET then
      check_held(name, member, priority, due_at(due), data, start)
    end
  end
  check_duplicate(name, repair)
end
return {cursor, #page / 2, lost, unpack(found)}
