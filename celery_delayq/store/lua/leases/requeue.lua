-- Put leased messages of a process back into their ready lists, about 1 MB of them.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  leased  wake  deliveries  dead  dead_at  quarantined  next_due
--          permits  blocked_lanes  freed_lanes  ready_lists…
-- ARGV     queue  wake_channel
--          run_order: 'first' to run next, 'last' to run after all that is ready
--          count_as: 'nothing', 'requeued', 'crashed' or 'died'; 'died' if the process ends by an
--            error of unknown cause
--          max_crashes: most crashes or deaths, 0 for no limit
--          details: details for the dead letter of a message that crashed too often
--          worker_id
--          list_count: how many ready lists
--          steps_and_fields…: their priority steps, then the fields of the messages in the order in
--            which they were leased
-- Returns  {requeued, dead-lettered, number of fields done}; fields are done from the first one for
--          'last', from the last one for 'first'
-- Repeat   goes on with the fields that are left; {0, 0, all} if none is left
-- Roles    worker
-- @include clock
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include dead_letter
-- @include leases/lease
-- @include dispatch/next_due
-- @include limits/permits
-- @include leases/death_counts

local most, lists = tonumber(ARGV.max_crashes), tonumber(ARGV.list_count)
local list_of = lists_by_step({select(FIRST.ready_lists, unpack(KEYS))},
  {select(FIRST.steps_and_fields, unpack(ARGV))})
expect_state()
expect_types(FIRST.deliveries, 'hash', 'hash', 'zset', 'list')
-- Moving frees memory, so a full server must accept the script: see dispatch/promote.lua.
redis.call('ZREM', KEYS.dead_at, '')

local moved, dead_lettered, looked, corrupt, empty = 0, 0, 0, 0, 0
local push = ARGV.run_order == 'last' and 'LPUSH' or 'RPUSH'
local from, to, step_by = #ARGV, FIRST.steps_and_fields + lists, -1
if ARGV.run_order == 'last' then
  from, to, step_by = to, from, 1
end

-- Count a redelivery. Returns true if the message crashed too often and is a dead letter now.
local function count_redelivery(message)
  if ARGV.count_as == 'nothing' then
    return false
  end
  local digest = redis.sha1hex(message)
  local reclaimed, crashed, requeued = read_deliveries(redis.call('HGET', KEYS.deliveries, digest))
  if ARGV.count_as == 'crashed' then
    crashed = crashed + 1
  else
    requeued = requeued + 1
  end
  if ARGV.count_as == 'crashed' and most > 0 and crashed > most then
    redis.call('HDEL', KEYS.deliveries, digest)
    end_lease(ARGV.queue, message)
    add_dead_letter(KEYS.dead, KEYS.dead_at, read_label(message) or digest, to_ms(now_us()), 0,
      string.format('killed its process %d times', crashed), message, ARGV.details)
    return true
  end
  write_deliveries(KEYS.deliveries, digest, reclaimed, crashed, requeued)
  return false
end

local function put_back(step, mark, message)
  local fate = 'ready'
  if ARGV.count_as == 'died' then
    fate = count_death(ARGV.queue, message, mark, most, ARGV.worker_id, KEYS.deliveries, KEYS.dead,
      KEYS.dead_at)
    mark = ''
  elseif count_redelivery(message) then
    fate = 'dead'
  else
    track_requeued(ARGV.queue, message)
  end
  if fate == 'dead' then
    dead_lettered = dead_lettered + 1
    return
  elseif fate == 'quarantined' then
    redis.call('LPUSH', KEYS.quarantined, step .. '\n' .. message)
  elseif mark == '!' then
    redis.call(push, KEYS.quarantined, step .. '\n' .. message)
  else
    redis.call(push, list_of[step] or KEYS[FIRST.ready_lists], message)
  end
  moved = moved + 1
end

for i = from, to, step_by do
  if bytes_left <= 0 then
    break
  end
  local value = redis.call('HGET', KEYS.leased, ARGV[i])
  take_bytes(value and #value or 0)
  looked = looked + 1
  local step, mark, start = read_leased(value)
  if step then
    put_back(step, mark, message_in(value, start))
  elseif value and value ~= '' then
    add_dead_letter(KEYS.dead, KEYS.dead_at, ARGV[i], to_ms(now_us()), 0, 'unreadable', value)
    corrupt = corrupt + 1
  elseif value then
    empty = empty + 1
  end
  redis.call('HDEL', KEYS.leased, ARGV[i])
end
add_total(TOTALS, 'ready', moved)
add_total(TOTALS, 'redelivered', ARGV.count_as ~= 'nothing' and moved or 0)
add_total(TOTALS, 'dead:crashed', dead_lettered)
add_total(TOTALS, 'dead:corrupt', corrupt)
add_total(TOTALS, 'empty', -empty)
if moved > 0 then
  wake_consumers(KEYS.wake)
end
return {moved, dead_lettered + corrupt, looked}
