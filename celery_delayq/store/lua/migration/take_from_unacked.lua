-- Take over a message that stock workers hold: out of kombu's unacked keys into the schedule or,
-- when it is due, into its ready list.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 queues  12 wake  13 ready list  14 unacked
--          15 unacked_index
-- ARGV     1 queue  2 layout of the queue  3 wake channel  4 no limit  5 id  6 due (ms, '+' before
--          it when it counts from now)  7 which of KEYS is its ready list  8 record  9 no policy
--          10 delivery tag
-- Returns  'scheduled' | 'ready' | 'gone'; 'gone' is no longer held
-- Repeat   'gone'
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include entry_store
-- @include dispatch/next_due

local clock = now_us()
local now = to_ms(clock)
local id, due, data, tag = ARGV[5], due_of(ARGV[6], clock), ARGV[8], ARGV[10]
local _, message_id, task, start = read_record(data)
if redis.call('HEXISTS', KEYS[14], tag) == 0 then
  return 'gone'
end
expect_state()
expect_type(KEYS[11], 'hash')
expect_type(KEYS[13], 'list')
expect_type(KEYS[15], 'zset')
-- Moving frees memory, so a full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[10], '')
local state
if due > now then
  if put_entry(id, due, data, message_id, task) then
    add_total(TOTALS, 'accepted', 1)
  end
  announce(KEYS[10], KEYS[11], ARGV[1], ARGV[2], due, clock, ARGV[3])
  state = 'scheduled'
else
  put_ready(KEYS[13], KEYS[12], due, now, data, task, start)
  add_total(TOTALS, 'pushed', 1)
  state = 'ready'
end
redis.call('HDEL', KEYS[14], tag)
redis.call('ZREM', KEYS[15], tag)
return state
