-- Take over a message that stock workers hold: out of kombu's unacked keys into the schedule or,
-- when it is due, into its ready list.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index  8 leased_index  9 next_due
--          10 queues  11 wake  12 ready list  13 unacked  14 unacked_index
-- ARGV     1 queue  2 layout of the queue  3 wake channel  4 no limit  5 id  6 due (ms, '+' before
--          it when it counts from now)  7 which of KEYS is its ready list  8 record  9 no policy
--          10 delivery tag
-- Returns  'scheduled' | 'ready' | 'gone'; 'gone' is no longer held
-- Repeat   'gone'
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include wake
-- @include entry_store
-- @include next_due

local clock = now_us()
local now = to_ms(clock)
local id, due, data, tag = ARGV[5], due_of(ARGV[6], clock), ARGV[8], ARGV[10]
local _, message_id, task, start = read_record(data)
if redis.call('HEXISTS', KEYS[13], tag) == 0 then
  return 'gone'
end
expect_state()
expect_type(KEYS[10], 'hash')
expect_type(KEYS[12], 'list')
expect_type(KEYS[14], 'zset')
-- Moving frees memory, so a full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[9], '')
local state
if due > now then
  put_entry(id, due, data, message_id, task)
  announce(KEYS[9], KEYS[10], ARGV[1], ARGV[2], due, clock, ARGV[3])
  state = 'scheduled'
else
  put_ready(KEYS[12], KEYS[11], due, now, data, task, start)
  state = 'ready'
end
redis.call('HDEL', KEYS[13], tag)
redis.call('ZREM', KEYS[14], tag)
return state
