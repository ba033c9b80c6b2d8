-- Look at a batch of the records: each must be readable, in the schedule and in the index by task.
-- Mending adds to the index; what is not in the schedule is for mend_schedule.lua, and of what
-- cannot be read promote.lua makes dead letters.
--
-- KEYS     1 due  2 entries  3 tasks
-- ARGV     1 cursor  2 about how many to look at  3 '1' to mend
-- Returns  {next cursor, looked at, {ids that are not in the schedule}, then for each kind {kind,
--          found, mended, some ids…}}
-- Repeat   finds what is left
-- @include types
-- @include record
-- @include mend

expect_type(KEYS[1], 'zset')
expect_type(KEYS[2], 'hash')
expect_type(KEYS[3], 'zset')
local mend = ARGV[3] == '1'
local lost = {}

-- Tasks run without it, so a full server may refuse it.
local function add(member)
  return mend and type(redis.pcall('ZADD', KEYS[3], 0, member)) == 'number'
end

local page = redis.call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])
for i = 1, #page[2], 2 do
  local id = page[2][i]
  local priority, _, task = read_record(page[2][i + 1])
  local due = redis.call('ZSCORE', KEYS[1], id)
  if not priority then
    note('unreadable', id, false)
  end
  if not due then
    lost[#lost + 1] = id
  elseif priority then
    local member = task_member(task, tonumber(due), id)
    if not redis.call('ZSCORE', KEYS[3], member) then
      note('unindexed', id, add(member))
    end
  end
end
return {page[1], #page[2] / 2, lost, unpack(found)}
