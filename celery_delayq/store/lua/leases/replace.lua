-- Schedule what takes the place of a message that a process holds: its retry, or itself, when it
-- came from a stock producer with a future ETA or belongs to a paused task.
--
-- The process still acknowledges the message, so an empty value stays in its place until then.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 queues  12 wake  13 ready list  14 leased
--          15 deliveries  16 leased_index, of the queue of the message  17 history
--          18 totals, of that queue
-- ARGV     1 queue  2 layout of the queue  3 wake channel  4 no limit  5 id  6 due (ms, '+' before
--          it when it counts from now)  7 which of KEYS is its ready list  8 record  9 what to do
--          when its unique key is taken (see include/unique_policy.lua), '' without one  10 field of the
--          message  11 'push' to make ready what is due, 'leave' to change nothing then, 'keep' to
--          schedule it all the same  12 about how many runs to keep in the history  13 the line
--          there of the run that is to be tried again, '' for none  14 the beginning of the
--          message that is held, up to its label, '' for none
-- Returns  'scheduled' | 'ready' | 'due' | 'gone' | 'duplicate' | 'superseded'; 'due' changed
--          nothing, 'gone' is no longer held, and whoever has it now makes its own, 'superseded'
--          was not stored since another has its unique key
-- Repeat   'duplicate'
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include entry_store
-- @include unique_policy
-- @include dispatch/next_due
-- @include lease
-- @include history

local clock = now_us()
local now = to_ms(clock)
local id, due, data, field = ARGV[5], due_of(ARGV[6], clock), ARGV[8], ARGV[10]
local _, message_id, task, start = read_record(data)
-- The length tells whether the process holds the message: to read a large one takes long.
if redis.call('HSTRLEN', KEYS[14], field) == 0 then
  return redis.call('HEXISTS', KEYS[14], field) == 1 and 'duplicate' or 'gone'
end
expect_state()
expect_type(KEYS[11], 'hash')
expect_type(KEYS[13], 'list')
expect_type(KEYS[15], 'hash')
expect_type(KEYS[16], 'hash')
if due <= now and ARGV[11] == 'leave' then
  return 'due'
end
-- One takes the place of the other, so a full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[10], '')

local plan = {what = 'beside'}
if ARGV[9] ~= '' then
  local _, _, _, unique = read_label(data, start)
  -- Itself, too, has the key no more when another has taken its place.
  plan = decide(unique, id, due, now, (string.gsub(ARGV[9], '%d$', '1')))
end
if plan.what == 'superseded' and ARGV[11] == 'keep' then
  -- Without the pause it would have run beside what has its key now.
  plan.what = 'beside'
end
local its_id, its_message_id, _, its_unique = read_label(ARGV[14])
if its_id then
  local _, its_due = untrack(KEYS[16], its_id, its_message_id, its_unique)
  if ARGV[11] == 'keep' and its_due > 0 then
    due = math.min(due, its_due)
  end
  if has_duplicate_ids() then
    redis.call('ZREM', DUPLICATE_IDS, duplicate_name(its_id, its_message_id))
  end
end
local state, stored = 'superseded', true
if plan.what == 'superseded' then
  state, stored = plan.what, false
elseif due > now or ARGV[11] == 'keep' then
  stored = put_entry(id, due, data, message_id, task)
  announce(KEYS[10], KEYS[11], ARGV[1], ARGV[2], due, clock, ARGV[3])
  state = 'scheduled'
else
  put_ready(KEYS[13], KEYS[12], due, now, data, task, start)
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
if redis.call('EXISTS', KEYS[15]) == 1 then
  local held = redis.call('HGET', KEYS[14], field)
  local _, _, held_start = read_leased(held)
  redis.call('HDEL', KEYS[15], redis.sha1hex(message_in(held, held_start)))
end
redis.call('HSET', KEYS[14], field, '')
add_total(KEYS[18], 'empty', 1)
if not stored then
  add_total(KEYS[18], 'replaced', 1)
else
  add_total(KEYS[18], 'retried', ARGV[11] == 'push' and 1 or 0)
  if KEYS[18] ~= TOTALS then
    add_total(KEYS[18], 'moved', 1)
    add_total(TOTALS, 'accepted', 1)
  end
  add_total(TOTALS, 'ready', state == 'ready' and 1 or 0)
end
add_run(KEYS[17], ARGV[12], ARGV[13])
return state
