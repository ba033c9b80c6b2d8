-- Reclaim the messages of a process with an expired lease, at most a batch and about 1 MB of them.
--
-- A message whose processes ended too often may be the cause. The script quarantines it: it is
-- delivered alone. If its process ends again, the message becomes a dead letter.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  leased  leases  lease_ends  clock  wake  deliveries  quarantined  dead
--          dead_at  request_numbers  next_due  permits  blocked_lanes  freed_lanes
--          ready_lists…
-- ARGV     queue  worker_id  most_messages
--          max_deliveries: most deliveries, 0 for no limit
--          max_gap_ms: longest gap for which lease time goes on (ms), see include/leases/lease.lua
--          wake_channel
--          steps…: the priority steps of ready_lists
-- Returns  {'1' if the queue has more messages to reclaim, requeued, quarantined, dead_lettered}
-- Repeat   goes on with the messages that are left
-- Roles    worker, dispatcher
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

-- Number of messages that are sorted. The last delivered message is pushed first, so that messages
-- run in the order of their delivery. A process with more messages does not keep their order.
local MOST_NAMES = 500

local list_of = lists_by_step({select(FIRST.ready_lists, unpack(KEYS))},
  {select(FIRST.steps, unpack(ARGV))})
expect_state()
expect_types(FIRST.deliveries, 'hash', 'list', 'hash', 'zset', 'hash')
-- Moving frees memory, so a full server must accept the script: see dispatch/promote.lua.
redis.call('ZREM', KEYS.lease_ends, '')

local most = tonumber(ARGV.max_deliveries)
local moved, quarantined, dead_lettered, corrupt, empty = 0, 0, 0, 0, 0

local function take_back(value)
  local step, mark, start = read_leased(value)
  if value == '' then
    empty = empty + 1
    return
  end
  if not step then
    add_dead_letter(KEYS.dead, KEYS.dead_at, redis.sha1hex(value), to_ms(now_us()), 0, 'unreadable',
      value)
    corrupt = corrupt + 1
    return
  end
  local message = message_in(value, start)
  local fate = count_death(ARGV.queue, message, mark, most, ARGV.worker_id, KEYS.deliveries, KEYS.dead,
    KEYS.dead_at)
  if fate == 'dead' then
    dead_lettered = dead_lettered + 1
  elseif fate == 'quarantined' then
    redis.call('LPUSH', KEYS.quarantined, step .. '\n' .. message)
    quarantined = quarantined + 1
  else
    redis.call('RPUSH', list_of[step] or KEYS[FIRST.ready_lists], message)
    moved = moved + 1
  end
end

local ends = redis.call('ZSCORE', KEYS.leases, ARGV.worker_id)
if ends and tonumber(ends) <= lease_now(KEYS.clock, ARGV.max_gap_ms) then
  local order = {}
  for _, field in ipairs(redis.call('HRANDFIELD', KEYS.leased, MOST_NAMES)) do
    local request_number, place = string.match(field, '^(%d+):(%d+)$')
    order[#order + 1] = {tonumber(request_number or 0), tonumber(place or 0), field}
  end
  -- The message that runs first is pushed last.
  table.sort(order, function(a, b)
    return a[1] > b[1] or a[1] == b[1] and a[2] > b[2]
  end)
  for i = 1, math.min(#order, tonumber(ARGV.most_messages)) do
    local field = order[i][3]
    local value = redis.call('HGET', KEYS.leased, field)
    take_bytes(#value)
    take_back(value)
    redis.call('HDEL', KEYS.leased, field)
    if bytes_left <= 0 then
      break
    end
  end
  if redis.call('EXISTS', KEYS.leased) == 0 then
    redis.call('ZREM', KEYS.leases, ARGV.worker_id)
    -- A copy of a request that arrives later may lease messages under fields that were used before.
    redis.call('HDEL', KEYS.request_numbers, ARGV.worker_id)
  end
  if moved + quarantined > 0 then
    wake_consumers(KEYS.wake)
  end
  add_total(TOTALS, 'ready', moved + quarantined)
  add_total(TOTALS, 'redelivered', moved + quarantined)
  add_total(TOTALS, 'dead:crashed', dead_lettered)
  add_total(TOTALS, 'dead:corrupt', corrupt)
  add_total(TOTALS, 'empty', -empty)
end
local more = '0'
local first = redis.call('ZRANGE', KEYS.leases, 0, 0, 'WITHSCORES')
if first[2] then
  redis.call('ZADD', KEYS.lease_ends, first[2], ARGV.queue)
  more = tonumber(first[2]) <= lease_now(KEYS.clock, ARGV.max_gap_ms) and '1' or '0'
else
  redis.call('ZREM', KEYS.lease_ends, ARGV.queue)
end
return {more, moved, quarantined, dead_lettered + corrupt}
