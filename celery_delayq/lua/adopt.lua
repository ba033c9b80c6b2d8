-- Take over a message that stock workers hold: out of kombu's unacked keys into the schedule or,
-- when it is due, into its ready list.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 queues  6 wake  7 ready list  8 unacked
--          9 unacked_index
-- ARGV     1 queue  2 layout of the queue  3 wake channel  4 id  5 due (ms, '+' before it when
--          it counts from now)  6 which of KEYS is its ready list  7 record  8 delivery tag
-- Returns  'scheduled' | 'ready' | 'gone'; 'gone' is no longer held
-- Repeat   'gone'
-- @include clock
-- @include types
-- @include record
-- @include entry
-- @include agenda
-- @include wake

local clock = now_us()
local now = to_ms(clock)
local id, due, data, tag = ARGV[4], due_of(ARGV[5], clock), ARGV[7], ARGV[8]
local _, nonce, task, start = read_record(data)
if redis.call('HEXISTS', KEYS[8], tag) == 0 then
  return 'gone'
end
expect_type(KEYS[1], 'zset')
expect_type(KEYS[2], 'hash')
expect_type(KEYS[3], 'zset')
expect_type(KEYS[7], 'list')
-- Moving frees memory, so a full server must let it pass: see promote.lua.
redis.call('ZREM', KEYS[4], '')
local state
if due > now then
  id = put_record(KEYS[2], id, data, nonce)
  if id then
    redis.call('ZADD', KEYS[1], due, id)
    redis.call('ZADD', KEYS[3], 0, task_member(task, due, id))
  end
  announce(KEYS[4], KEYS[5], ARGV[1], ARGV[2], due, clock, ARGV[3])
  state = 'scheduled'
else
  redis.call('LPUSH', KEYS[7], string.sub(data, start))
  wake(KEYS[6])
  state = 'ready'
end
redis.call('HDEL', KEYS[8], tag)
redis.call('ZREM', KEYS[9], tag)
return state
