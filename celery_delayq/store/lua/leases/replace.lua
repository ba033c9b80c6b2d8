-- Replace a leased message by its retry, or by itself, in the schedule.
--
-- A message is scheduled itself if a stock producer sent it with a future ETA, or if its task is
-- paused. The process acknowledges the leased message later: until then its field has an empty
-- value.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  queues  wake  ready_list
--          message_leased: leased of the process, for the queue of the leased message
--          message_deliveries: deliveries of that queue
--          message_leased_index: leased_index of that queue
--          history  history_index  history_index_before
--          message_totals: totals of that queue
--          permits  blocked_lanes  freed_lanes
-- ARGV     queue  layout  wake_channel
--          id
--          due_text: due (ms, with '+' from now)
--          record
--          unique_policy: policy if its unique key is taken (see include/unique_policy.lua), ''
--            without a unique key
--          field: field of the leased message
--          when_due: for a due message: 'push' makes it ready, 'leave' changes nothing, 'keep'
--            schedules it
--          history_size: about how many runs to keep in the history
--          run_line: the line of the run that is tried again in the history, '' for none
--          message_queue: queue of the leased message
--          leased_head: the beginning of the leased message, up to its limit, '' for none
-- Returns  'scheduled' | 'ready' | 'due' | 'gone' | 'duplicate' | 'superseded'; 'due' changed
--          nothing; 'gone': the process no longer has the leased message, and the process that has
--          it schedules its own retry; 'superseded': not stored, since another message has its
--          unique key
-- Repeat   'duplicate'
-- Roles    worker
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include entry_store
-- @include unique_policy
-- @include dispatch/next_due
-- @include leases/lease
-- @include limits/permits
-- @include history

local time_us = now_us()
local now = to_ms(time_us)
local id, due, data, field = ARGV.id, due_of_text(ARGV.due_text, time_us), ARGV.record, ARGV.field
local _, message_id, task, start = read_record(data)
-- The length shows whether the process has the message. Reading a large message takes long.
if redis.call('HSTRLEN', KEYS.message_leased, field) == 0 then
  return redis.call('HEXISTS', KEYS.message_leased, field) == 1 and 'duplicate' or 'gone'
end
expect_state()
expect_type(KEYS.queues, 'hash')
expect_type(KEYS.ready_list, 'list')
expect_type(KEYS.message_deliveries, 'hash')
expect_type(KEYS.message_leased_index, 'hash')
if due <= now and ARGV.when_due == 'leave' then
  return 'due'
end
-- Memory use stays, so a full server must accept the script: see dispatch/promote.lua.
redis.call('ZREM', KEYS.next_due, '')

local plan = {what = 'beside'}
if ARGV.unique_policy ~= '' then
  local _, _, _, unique = read_label(data, start)
  -- The message that is scheduled itself counts as a retry: it may have lost its key to another
  -- one.
  local policy = string.gsub(ARGV.unique_policy, '^(%a %d+) %d', '%1 1')
  plan = plan_unique_key(unique, id, due, now, policy)
end
if plan.what == 'superseded' and ARGV.when_due == 'keep' then
  -- Without the pause it would have run beside the message that has its key now.
  plan.what = 'beside'
end
local its_id, its_message_id, _, its_unique, behind = read_label(ARGV.leased_head)
if its_id then
  -- DUPLICATE_IDS does not tell of the names in another queue.
  local has_duplicates_here = duplicate_ids_there
  duplicate_ids_there = duplicate_ids_there or KEYS.message_leased_index ~= LEASED_INDEX
  local _, its_due = untrack_message(KEYS.message_leased_index, its_id, its_message_id, its_unique)
  duplicate_ids_there = has_duplicates_here
  if ARGV.when_due == 'keep' and its_due > 0 then
    due = math.min(due, its_due)
  end
  if has_duplicate_ids() then
    redis.call('ZREM', DUPLICATE_IDS, duplicate_name(its_id, its_message_id))
  end
  give_back_permit(ARGV.message_queue, ARGV.leased_head, behind, its_id, its_message_id)
end
local state, stored = 'superseded', true
if plan.what == 'superseded' then
  state, stored = plan.what, false
elseif due > now or ARGV.when_due == 'keep' then
  stored = put_entry(id, due, data, message_id, task)
  register_due(KEYS.next_due, KEYS.queues, ARGV.queue, ARGV.layout, due, time_us, ARGV.wake_channel)
  state = 'scheduled'
else
  put_ready(KEYS.ready_list, KEYS.wake, due, now, data, task, start)
  state = 'ready'
end
if its_id then
  release_key(its_unique, its_id, its_message_id)
end
if plan.what == 'store' then
  local _, _, _, unique = read_label(data, start)
  if state == 'scheduled' or string.sub(unique, 1, 1) == 'd' then
    take_key(plan, id, message_id)
  end
end
if redis.call('EXISTS', KEYS.message_deliveries) == 1 then
  local value = redis.call('HGET', KEYS.message_leased, field)
  local _, _, value_start = read_leased(value)
  redis.call('HDEL', KEYS.message_deliveries, redis.sha1hex(message_in(value, value_start)))
end
redis.call('HSET', KEYS.message_leased, field, '')
add_total(KEYS.message_totals, 'empty', 1)
if not stored then
  add_total(KEYS.message_totals, 'replaced', 1)
else
  add_total(KEYS.message_totals, 'retried', ARGV.when_due == 'push' and 1 or 0)
  if KEYS.message_totals ~= TOTALS then
    add_total(KEYS.message_totals, 'moved', 1)
    add_total(TOTALS, 'accepted', 1)
  end
  add_total(TOTALS, 'ready', state == 'ready' and 1 or 0)
end
add_run(tonumber(ARGV.history_size), ARGV.run_line)
return state
