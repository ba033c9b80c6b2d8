-- Put records that are not in the schedule back into it.
--
-- KEYS     1 due  2 entries  3 tasks  4 next_due
-- ARGV     1 queue  2… for each: id, due (ms, '' for now)
-- Returns  {0, looked at, {}, then {kind, found, repaired, some ids…}}
-- Repeat   changes nothing
-- @include clock
-- @include types
-- @include record
-- @include dispatch/next_due
-- @include repair/report

expect_types(1, 'zset', 'hash', 'zset')
-- Without it they would stay for ever, so a full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[4], '')
for i = 2, #ARGV, 2 do
  local id, due = ARGV[i], tonumber(ARGV[i + 1]) or to_ms(now_us())
  local data = redis.call('HGET', KEYS[2], id)
  if data and redis.call('ZADD', KEYS[1], 'NX', due, id) == 1 then
    local priority, _, task = read_record(data)
    if priority then
      redis.call('ZADD', KEYS[3], 0, task_member(task, due, id))
    end
    note('unscheduled', id, true)
  end
end
look_again(KEYS[4], ARGV[1], KEYS[1])
return tell('0', (#ARGV - 1) / 2)
