-- Store messages until they are due; those whose moment has passed go to ready at once.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 queues  6 wake  7… ready lists
-- ARGV     1 queue  2 layout of the queue  3 wake channel  4… for each message: id, due (ms,
--          '+' before it when it counts from now), which of KEYS is its ready list, record
-- Returns  {now (ms, rounded up), a letter for each message: 's' scheduled, 'r' ready, 'd' a duplicate}
-- Repeat   the same record again is a duplicate while its entry waits
-- @include clock
-- @include types
-- @include record
-- @include entry
-- @include agenda
-- @include wake

local clock = now_us()
local now = to_ms(clock)
expect_type(KEYS[1], 'zset')
expect_type(KEYS[2], 'hash')
expect_type(KEYS[3], 'zset')
for i = 7, #KEYS do
  expect_type(KEYS[i], 'list')
end

local states, dues, members = {}, {}, {}
local first = math.huge
for i = 4, #ARGV, 4 do
  local id, due, data = ARGV[i], due_of(ARGV[i + 1], clock), ARGV[i + 3]
  local _, nonce, task, start = read_record(data)
  if due <= now then
    redis.call('LPUSH', KEYS[tonumber(ARGV[i + 2])], string.sub(data, start))
    wake(KEYS[6])
    states[#states + 1] = 'r'
  else
    id = put_record(KEYS[2], id, data, nonce)
    states[#states + 1] = id and 's' or 'd'
    if id then
      dues[#dues + 1], dues[#dues + 2] = due, id
      members[#members + 1], members[#members + 2] = 0, task_member(task, due, id)
      if due < first then
        first = due
      end
    end
  end
end
if #dues > 0 then
  redis.call('ZADD', KEYS[1], unpack(dues))
  redis.call('ZADD', KEYS[3], unpack(members))
  announce(KEYS[4], KEYS[5], ARGV[1], ARGV[2], first, clock, ARGV[3])
end
return {math.ceil(clock / 1000), table.concat(states)}
