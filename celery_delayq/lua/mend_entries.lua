-- Look at a batch of the records: each must be readable, in the schedule and in the index by task.
-- Mending comes after that of the index, so what is not in the schedule is due now. Unreadable
-- ones stay; promote.lua makes dead letters of them.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda
-- ARGV     1 queue  2 cursor  3 about how many to look at  4 '1' to mend
-- Returns  {next cursor, looked at, then for each kind {kind, found, mended, some ids…}}
-- Repeat   finds what is left
-- @include clock
-- @include types
-- @include record
-- @include agenda
-- @include mend

expect_type(KEYS[1], 'zset')
expect_type(KEYS[2], 'hash')
expect_type(KEYS[3], 'zset')
local mend = ARGV[4] == '1'
local page = redis.call('HSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
local again = false
for i = 1, #page[2], 2 do
  local id = page[2][i]
  local priority, _, task = read_record(page[2][i + 1])
  local due = redis.call('ZSCORE', KEYS[1], id)
  local member = due and priority and task_member(task, tonumber(due), id)
  if not priority then
    note('unreadable', id, false)
  end
  if not due then
    note('unscheduled', id, mend)
    if mend then
      -- A full server must let it pass: see promote.lua.
      redis.call('ZREM', KEYS[4], '')
      due = to_ms(now_us())
      redis.call('ZADD', KEYS[1], due, id)
      if priority then
        redis.call('ZADD', KEYS[3], 0, task_member(task, due, id))
      end
      again = true
    end
  elseif member and not redis.call('ZSCORE', KEYS[3], member) then
    -- Tasks run without it, so a full server may refuse it.
    note('unindexed', id, mend and type(redis.pcall('ZADD', KEYS[3], 0, member)) == 'number')
  end
end
if again then
  look_again(KEYS[4], ARGV[1], KEYS[1])
end
return tell(page[1], #page[2] / 2)
