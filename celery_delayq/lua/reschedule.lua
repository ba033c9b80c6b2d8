-- Move scheduled entries to another due.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running  9 agenda
--          10 answer
-- ARGV     1 queue  2 wake channel  3… for each: id, due (ms, '+' before it when it counts from
--          now), only if it is due then (ms), '' for any
-- Returns  a letter for each id: 'd' done, 'w' it is ready already, 'r' a process holds it, 'c' it
--          is due at another time, 'p' the new due has passed, 'u' unknown
-- Repeat   the same, for a minute
-- @include clock
-- @include types
-- @include record
-- @include state
-- @include entry
-- @include agenda
-- @include answer
-- @include find

local kept = answered(KEYS[10])
if kept then
  return kept
end
expect_state()
local clock = now_us()
-- Nothing is added, so it must pass on a full server: see promote.lua.
redis.call('ZREM', KEYS[9], '')

local function move(name, state, data, due, wanted)
  if state ~= 's' then
    return state
  end
  local score = tonumber(redis.call('ZSCORE', DUE, name) or 0)
  if wanted and due_at(score) ~= wanted then
    return 'c'
  elseif due <= to_ms(clock) then
    return 'p'
  end
  local _, _, task = read_record(data)
  if task then
    local member = task_member(task, due_at(score), name)
    redis.call('ZREM', TASKS, member)
    redis.call('ZREM', PARKED, member)
    redis.call('ZADD', TASKS, 0, task_member(task, due, name))
  end
  redis.call('ZADD', DUE, due, name)
  look_at(KEYS[9], ARGV[1], due, clock, ARGV[2])
  return 'd'
end

local letters = {}
for i = 3, #ARGV, 3 do
  local letter = 'u'
  for _, one in ipairs(find_all(ARGV[i])) do
    letter = worse(letter,
      move(one[1], one[2], one[3], due_of(ARGV[i + 1], clock), tonumber(ARGV[i + 2])))
  end
  letters[#letters + 1] = letter
end
return answer(KEYS[10], table.concat(letters))
