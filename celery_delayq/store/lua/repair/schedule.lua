-- Put records that are not in the schedule back into it.
--
-- KEYS     due  entries  tasks  next_due  lanes
-- ARGV     queue
--          lost_entries…: for each: id, due (ms, '' for now)
-- Returns  {0, looked at, {}, then {kind, found, repaired, some ids…}}
-- Repeat   changes nothing
-- Roles    operator
-- @include clock
-- @include types
-- @include record
-- @include dispatch/next_due
-- @include repair/report

expect_types(FIRST.due, 'zset', 'hash', 'zset')
-- Without the repair records stay for ever, so a full server must accept it: see
-- dispatch/promote.lua.
redis.call('ZREM', KEYS.next_due, '')
for i = FIRST.lost_entries, #ARGV, 2 do
  local id, due = ARGV[i], tonumber(ARGV[i + 1]) or to_ms(now_us())
  local data = redis.call('HGET', KEYS.entries, id)
  if data and redis.call('ZADD', KEYS.due, 'NX', due, id) == 1 then
    local priority, _, task = read_record(data)
    if priority then
      redis.call('ZADD', KEYS.tasks, 0, task_member(task, due, id))
    end
    note_drift('unscheduled', id, true)
  end
end
plan_next_look(KEYS.next_due, ARGV.queue, KEYS.due, KEYS.lanes, now_us())
return report('0', (#ARGV - FIRST.lost_entries + 1) / 2)
