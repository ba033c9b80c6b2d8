-- Move a message of stock workers from kombu's unacked keys into the schedule or, if it is due,
-- into its ready list.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  queues  wake  ready_list  unacked  unacked_index
-- ARGV     queue  layout  wake_channel
--          id
--          due_text: due (ms, with '+' from now)
--          record
--          delivery_tag
-- Returns  'scheduled' | 'ready' | 'gone'; 'gone': the message is no longer in unacked
-- Repeat   'gone'
-- Roles    operator
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include entry_store
-- @include dispatch/next_due

local time_us = now_us()
local now = to_ms(time_us)
local id, due, data, tag = ARGV.id, due_of_text(ARGV.due_text, time_us), ARGV.record,
  ARGV.delivery_tag
local _, message_id, task, start = read_record(data)
if redis.call('HEXISTS', KEYS.unacked, tag) == 0 then
  return 'gone'
end
expect_state()
expect_type(KEYS.queues, 'hash')
expect_type(KEYS.ready_list, 'list')
expect_type(KEYS.unacked_index, 'zset')
-- Moving frees memory, so a full server must accept the script: see dispatch/promote.lua.
redis.call('ZREM', KEYS.next_due, '')
local state
if due > now then
  if put_entry(id, due, data, message_id, task) then
    add_total(TOTALS, 'accepted', 1)
  end
  register_due(KEYS.next_due, KEYS.queues, ARGV.queue, ARGV.layout, due, time_us, ARGV.wake_channel)
  state = 'scheduled'
else
  put_ready(KEYS.ready_list, KEYS.wake, due, now, data, task, start)
  add_total(TOTALS, 'pushed', 1)
  state = 'ready'
end
redis.call('HDEL', KEYS.unacked, tag)
redis.call('ZREM', KEYS.unacked_index, tag)
return state
