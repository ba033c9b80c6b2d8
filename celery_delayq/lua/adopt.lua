-- Take over a message that stock workers hold: out of kombu's unacked keys into the schedule,
-- or, when it is due, into the ready list if asked to.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 queues  6 ready list of its priority
--          7 unacked  8 unacked_index
-- ARGV     1 queue  2 id  3 due (ms)  4 '1' when due counts from now  5 record
--          6 layout of the queue  7 wake channel  8 delivery tag  9 '1' to hand out what is due
-- Returns  {'scheduled' | 'ready' | 'due' | 'gone', due (ms since 1970)}; 'due' changed nothing,
--          'gone' is no longer held
-- Repeat   'gone'
-- @include clock
-- @include types
-- @include record
-- @include entry
-- @include agenda

local queue, id, due, data, tag = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[5], ARGV[8]
local now = now_ms()
if ARGV[4] == '1' then
  due = now + due
end
if redis.call('HEXISTS', KEYS[7], tag) == 0 then
  return {'gone', due}
end
local state
if due > now then
  put_entry(KEYS[1], KEYS[2], KEYS[3], id, due, data)
  announce(KEYS[4], KEYS[5], queue, ARGV[6], due, now, ARGV[7])
  state = 'scheduled'
elseif ARGV[9] == '1' then
  redis.call('LPUSH', KEYS[6], read_record(data).message)
  state = 'ready'
else
  return {'due', due}
end
redis.call('HDEL', KEYS[7], tag)
redis.call('ZREM', KEYS[8], tag)
return {state, due}
