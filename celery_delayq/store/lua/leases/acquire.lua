-- Lease messages of one queue to a process, at most as many as it asks for and about 1 MB.
--
-- A paused queue leases none. A message of a task with a limit waits in its lane if its limit allows
-- none now, or if its lanes take turns: for that there is the variant +limits. If there are limits,
-- the script itself leases none.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  wake  leased  leases  lease_ends  clock  deliveries
--          quarantined  quarantine_turn  request_numbers  control  pace  dead  dead_at
--          lanes_wake  limits  permits  slots  blocked_lanes  freed_lanes
--          ready_lists…: the most urgent first
-- ARGV     queue  worker_id
--          lease_ms: lease (ms)
--          request_number: a number that grows with each request of the process
--          most_messages
--          list_count: how many ready lists to take from
--          leased_count: number of messages of all queues that the process has leased or may get by
--            other calls; -1 if it cannot make room for a long time
--          wake_channel
--          reports_not_run: '1' to lease messages that do not run too, since the process reports
--            them, else '0'
--          most_limited: most messages of lanes whose permits are scarce: as many as the process
--            can run now
--          steps…: the priority steps of ready_lists
-- Returns  a list:
--          1  the place of the first ready list that is not empty, or of the priority of the next
--             lane that may go; 0 for none
--          2  '1' if the message is delivered alone; '2' if the process must acknowledge or requeue
--             all its messages before it takes another one; else '0'. A '+' follows if stock
--             producers have pushed messages, a '~' if there are limits, a '^' if lanes may go and
--             the process gets no more of their messages than it can run now
--          3  the revision of pauses and revokes. Then for each message a space and its field:
--             '<request_number>:<place>[~[~]][<mark>[<ms late>]][@<when ready, ms>]'; '~': it has
--             a permit, '~~': a scarce one (include/tracking.lua has the marks)
--          4  for each message a comma and its earlier deliveries; '' if none are counted
--          5  and all after it: the messages
-- Repeat   returns the messages of the same request number that are still leased, and takes none
-- Roles    worker
-- @include clock
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include leases/lease
-- @include dispatch/next_due
-- @with limits
-- @include limits/lanes
-- @include entry_store
-- @include limits/permits
-- @end
-- @include dead_letter
-- @include dispatch/rate_limit

local queue, worker_id = ARGV.queue, ARGV.worker_id
local lease, request_number = tonumber(ARGV.lease_ms), ARGV.request_number
local most_messages, list_count = tonumber(ARGV.most_messages), tonumber(ARGV.list_count)
local reply = {0, '0', '', ''}

-- Every check that may raise comes before the first move.
local leased_of_queue = read_typed('hash', 'HLEN', KEYS.leased)
local lease_end = tonumber(read_typed('zset', 'ZSCORE', KEYS.leases, worker_id) or 0)
-- Moving frees memory, so a full server must accept the script: see dispatch/promote.lua.
read_typed('zset', 'ZREM', KEYS.lease_ends, '')
local last_request_number = read_whole(read_typed('hash', 'HGET', KEYS.request_numbers, worker_id))
  or 0
local revision, paused = unpack(read_typed('hash', 'HMGET', KEYS.control, 'revision', 'q' .. queue))
local in_ready_index, untracked = read_typed('hash', 'HLEN', READY_INDEX), 0
local has_ready_index = in_ready_index > 0
local has_leased_index = read_typed('hash', 'HLEN', LEASED_INDEX) > 0
-- These keys mostly do not exist: one command finds out whether any exists.
local has_deliveries, quarantined = false, 0
-- While a dispatcher holds entries back: it goes on when fewer messages are ready (max_ready).
local resume_below
local rare = {
  UNIQUE, DUPLICATE_IDS, KEYS.deliveries, KEYS.quarantined, KEYS.pace, KEYS.dead, KEYS.dead_at,
  KEYS.limits, LANES, select(FIRST.ready_lists + 1, unpack(KEYS))}
local has_rare = redis.call('EXISTS', unpack(rare)) > 0
local has_limits, has_lanes = false, false
if has_rare then
  has_limits = read_typed('hash', 'HLEN', KEYS.limits) > 0
  has_lanes = read_typed('zset', 'ZCARD', LANES) > 0
  has_deliveries = read_typed('hash', 'HLEN', KEYS.deliveries) > 0
  quarantined = read_typed('list', 'LLEN', KEYS.quarantined)
  resume_below = read_typed('hash', 'HGET', KEYS.pace, 'below')
end
if has_rare and (has_ready_index or has_leased_index or has_limits or has_lanes) then
  expect_type(ENTRIES, 'hash')
  expect_type(UNIQUE, 'hash')
  expect_type(DUPLICATE_IDS, 'zset')
  expect_types(FIRST.dead, 'hash', 'zset')
  if has_limits or has_lanes then
    expect_types(FIRST.due, 'zset', 'hash', 'zset', 'zset', 'zset')
    expect_type(KEYS.next_due, 'zset')
    expect_types(FIRST.permits, 'zset', 'zset', 'zset', 'zset')
  end
elseif not has_rare then
  duplicate_ids_there = false
end
if resume_below then
  expect_type(KEYS.next_due, 'zset')
end
-- The ready lists after the first are among the rare keys: without rare keys they are empty.
local ready, ready_count = {}, 0
for i = FIRST.ready_lists, #KEYS do
  ready[i] = (has_rare or i == FIRST.ready_lists) and read_typed('list', 'LLEN', KEYS[i]) or 0
  ready_count = ready_count + ready[i]
end
local time_us = now_us()
local new_lease_end = lease_now(KEYS.clock, lease / 3, to_ms(time_us)) + lease

local waiting_before = ready_count + quarantined
local dropped = {}

local reply_fields, reply_counts = {}, {}

-- 'mark' is a mark of include/tracking.lua, behind '~' or '~~' for a message that has a permit.
local function add_to_reply(field, message, promoted, mark)
  reply[#reply + 1] = message
  reply_fields[#reply_fields + 1] = ' ' .. field .. mark .. (promoted ~= '' and '@' .. promoted
    or '')
  if has_deliveries then
    reply_counts[#reply_counts + 1] = ',' .. (redis.call('HGET', KEYS.deliveries,
      redis.sha1hex(message)) or '')
  end
end

local LATE = '!!!'

-- The mark in the reply to the process.
local function mark_for_process(mark, due)
  return mark == LATE and string.format('%s%.0f', mark, to_ms(time_us) - due) or mark
end

-- Whether another message has the id of a message that was just untracked. If so, the process gets
-- no report: callers that wait for the id wait for the other message.
local function has_other(id, message_id)
  for _, index in ipairs({ENTRIES, READY_INDEX, LEASED_INDEX}) do
    -- Messages have already moved, so an index of a wrong type must not raise.
    if redis.pcall('HEXISTS', index, id) == 1 then
      return true
    end
  end
  local names = has_duplicate_ids() and redis.call('ZRANGEBYLEX', DUPLICATE_IDS,
    '[' .. duplicate_name(id, ''), '(' .. id .. '\1', 'LIMIT', 0, 2) or {}
  return #names > 1 or names[1] ~= nil and names[1] ~= duplicate_name(id, message_id)
end

-- Note that the process has leased a message. Returns its mark for the process, nil for a message
-- that does not run and is dropped.
local function lease_or_drop(message, id, message_id, skip, unique, mark, due, rest)
  if mark == '' or ARGV.reports_not_run == '1' and not has_other(id, message_id) then
    track_message(LEASED_INDEX, id, message_id, rest .. ' ' .. worker_id, mark)
    if mark ~= '' then
      release_key(unique, id, message_id)
    end
    return mark_for_process(mark, due)
  end
  if mark == LATE then
    add_dead_letter(KEYS.dead, KEYS.dead_at, id, to_ms(time_us), due,
      skip_reason(to_ms(time_us), due, skip), message)
  end
  dropped[mark] = (dropped[mark] or 0) + 1
  forget_tracked(READY_INDEX, message)
  if has_deliveries then
    redis.call('HDEL', KEYS.deliveries, redis.sha1hex(message))
  end
  return nil
end

local function is_late(skip, due)
  return skip > 0 and due > 0 and to_ms(time_us) - due > skip
end

-- @with limits
local most_limited, from_lanes = tonumber(ARGV.most_limited), 0

-- Whether the process may lease a message of a lane now, and whether permits are scarce. Of scarce
-- ones a process takes no more than it can use at once.
local function may_lease(lane, definition)
  local moment, is_scarce = moment_of_next(lane, definition, time_us)
  return moment == time_us and (most_limited > 0 or not is_scarce), is_scarce
end

-- Take a permit, also where the limit is off: it may come back while the task runs. An expired
-- message uses no slot, but has a permit: it runs if its worker's clock is behind. Returns '~', and
-- '~~' for a scarce permit.
local function count_limited(lane, expires, definition, id, message_id, is_scarce)
  local is_expired = expires > 0 and expires <= to_ms(time_us)
  take_permit(lane, not is_expired and definition, queue, id, message_id, time_us)
  most_limited = most_limited - (is_scarce and 1 or 0)
  return is_scarce and '~~' or '~'
end

-- Whether the limit of a quarantined message allows none now.
local function must_wait(message)
  local _, _, _, _, behind = read_label(message)
  local lane = read_lane(message, behind)
  return lane and not may_lease(lane, limit_of(lane))
end

-- Hold a message that was ready in its lane.
local function hold_message(message, step, id, message_id, skip, unique, lane, rest, due)
  local task = string.match(rest, '^%S+ %S+ (%S*)')
  local record = message
  if step ~= '0' or read_record(message) ~= '0' then
    record = string.format('1 %s %s %s\n', step, message_id, task) .. message
  end
  local name = put_record(id, record, message_id)
  if name then
    -- A requeued message was in time once, and its due is 0: see track_requeued.
    due = (due > 0 or skip > 0) and due or due_of_arrival(lane, step, to_ms(time_us))
    redis.call('ZADD', TASKS, 0, task_member(task, due, name))
    hold_entries({{name, step, due, lane}}, time_us)
    has_lanes = true
    if string.byte(unique) == 115 then -- scope 's': the key is its own while it is scheduled
      redis.call('HSETNX', UNIQUE, string.sub(unique, 2), '=' .. duplicate_name(id, message_id))
    end
  end
end
-- @end

-- Take a message that was ready. Returns the time when it became ready ('' if unknown) and its mark
-- for the process. Returns nil for a message that is dropped or held, and 'held' for a held one.
local function admit_message(message, step, is_quarantined)
  local id, message_id, skip, unique, behind = read_label(message)
  if not id then
    return '', ''
  end
  local mark, due, rest, promoted, was_there = untrack_message(READY_INDEX, id, message_id, unique)
  untracked = untracked + (was_there and 1 or 0)
  if mark == '' and is_late(skip, due) then
    mark = LATE
  end
  local permit = ''
  -- @with limits
  local lane, expires = read_lane(message, behind)
  if lane and mark == '' then
    local definition = limit_of(lane)
    local may_go, is_scarce = may_lease(lane, definition)
    local is_in_turn = is_quarantined or not definition
      or not definition.is_fair and not redis.call('ZSCORE', LANES, lane)
    if not may_go or not is_in_turn then
      hold_message(message, step, id, message_id, skip, unique, lane, rest, due)
      return nil, 'held'
    end
    permit = count_limited(lane, expires, definition, id, message_id, is_scarce)
  end
  -- @end
  mark = lease_or_drop(message, id, message_id, skip, unique, mark, due, rest)
  return mark and promoted, mark and permit .. mark
end

-- The mark of a message that is already leased to the process.
local function mark_of(message)
  local id, its_message_id, _, _, behind = read_label(message)
  local _, value
  if id then
    _, value = find_tracked(LEASED_INDEX, id, its_message_id)
  end
  local mark, _, due = read_tracked(value)
  local permit = ''
  -- @with limits
  local lane = read_lane(message, behind)
  if lane and redis.call('ZSCORE', KEYS.permits, permit_member(lane, queue, id, its_message_id)) then
    permit = '~~'
  end
  -- @end
  return permit .. mark_for_process(mark or '', tonumber(due or 0))
end

-- Reply with the messages that an earlier call has leased. The reply of that call was lost, or the
-- call came late over a closed connection.
local function repeat_reply()
  for place = 1, most_messages do
    local field = request_number .. ':' .. place
    local item = redis.call('HGET', KEYS.leased, field)
    local _, mark, start = read_leased(item)
    if start then
      reply[2] = mark == '!' and '1' or reply[2]
      local message = message_in(item, start)
      add_to_reply(field, message, '', mark_of(message))
    end
  end
end

-- A quarantined message is delivered alone, so that a crash affects and blames no other message.
-- One worker at a time stops taking messages until it has no other message.
local function take_quarantined()
  if quarantined == 0 then
    return false
  end
  local item = redis.call('LINDEX', KEYS.quarantined, -1)
  local step, _, start = read_leased(item)
  local message = message_in(item, start or 1)
  -- @with limits
  if must_wait(message) then
    -- The next one comes first. The next look is in a second, and no worker makes room until then.
    redis.call('RPOPLPUSH', KEYS.quarantined, KEYS.quarantined)
    redis.call('SET', KEYS.quarantine_turn, '', 'PX', 1000)
    return false
  end
  -- @end
  if leased_of_queue > 0 or tonumber(ARGV.leased_count) ~= 0 then
    if tonumber(ARGV.leased_count) < 0 then
      return false
    end
    if redis.call('PTTL', KEYS.quarantine_turn) > lease then
      redis.call('PEXPIRE', KEYS.quarantine_turn, lease) -- the clock was set back
    end
    redis.call('SET', KEYS.quarantine_turn, worker_id, 'PX', lease, 'NX')
    if redis.call('GET', KEYS.quarantine_turn) ~= worker_id then
      return false
    end
    reply[2] = '2'
    return true
  end
  local promoted, its_mark = admit_message(message, step, true)
  if promoted then
    local field = request_number .. ':1'
    redis.call('HSET', KEYS.leased, field, (step or ARGV[FIRST.steps]) .. '!\n' .. message)
    add_to_reply(field, message, promoted, its_mark)
    reply[2] = '1'
  end
  redis.call('RPOP', KEYS.quarantined)
  redis.call('DEL', KEYS.quarantine_turn)
  quarantined = quarantined - 1
  return true
end

local place, fields = 0, {}

local function write_fields()
  if #fields > 0 then
    redis.call('HSET', KEYS.leased, unpack(fields))
    fields = {}
  end
end

local function lease_to_process(message, step, promoted, mark)
  place = place + 1
  local field = request_number .. ':' .. place
  fields[#fields + 1] = field
  fields[#fields + 1] = leased_value(step, message)
  add_to_reply(field, message, promoted, mark)
  if #fields >= 1000 then
    write_fields() -- the stack of Lua has an end
  end
end

-- How often this call may still hold a message in its lane, or try a lane. Each takes as long as
-- several messages that are leased.
local lane_tries_left = 100

local function take_ready(most)
  for i = FIRST.ready_lists, FIRST.ready_lists + list_count - 1 do
    local step = ARGV[i + (FIRST.steps - FIRST.ready_lists)]
    local left = math.min(ready[i], most - place)
    while left > 0 and ready[i] > 0 and bytes_left > 0 do
      local message = redis.call('RPOP', KEYS[i])
      take_bytes(#message)
      ready[i] = ready[i] - 1
      ready_count = ready_count - 1
      local promoted, mark = admit_message(message, step)
      if promoted then
        lease_to_process(message, step, promoted, mark)
      end
      if mark == 'held' and lane_tries_left > 0 then
        lane_tries_left = lane_tries_left - 1
      else
        left = left - 1
      end
    end
  end
end

-- @with limits
local paused_tasks, more_freed = {}, false

local function is_paused(task)
  if paused_tasks[task] == nil then
    paused_tasks[task] = revision and redis.call('HEXISTS', KEYS.control, 't' .. task) == 1
  end
  return paused_tasks[task]
end

-- Take the first entry of a lane that may go.
local function take_first(lane, definition, is_scarce)
  local first, last = lane_range(lane)
  local member, following = unpack(redis.call('ZRANGEBYLEX', HELD, first, last, 'LIMIT', 0, 2))
  if not member then
    redis.call('ZREM', LANES, lane)
    return
  end
  local due, name = due_in_lane(member)
  local data = redis.call('HGET', ENTRIES, name)
  local step, _, task, start = read_record(data)
  local id, message_id, skip, unique, behind
  if step then
    take_bytes(#data)
    id, message_id, skip, unique, behind = read_label(data, start)
  end
  if not id or tonumber(redis.call('ZSCORE', DUE, name) or 0) ~= due + PAUSED_OFFSET then
    -- The entry is gone, or older code has moved it. dispatch/promote.lua handles an unreadable one.
    redis.call('ZREM', HELD, member)
    if not id then
      redis.call('ZADD', DUE, 'XX', due, name)
      plan_look(KEYS.next_due, queue, due, time_us, ARGV.wake_channel)
    end
    return
  end
  if is_paused(task) then
    leave_lane(lane, step, due, name)
    redis.call('ZADD', PAUSED_DUE, 0, task_member(task, due, name))
    return
  end
  local message = message_in(data, start)
  take_entry(name, due + PAUSED_OFFSET, data)
  local mark, permit = is_late(skip, due) and LATE or '', ''
  local its_lane, expires = read_lane(message, behind - start + 1)
  if mark == '' and its_lane then
    permit = count_limited(its_lane, expires, limit_of(its_lane), id, message_id, is_scarce)
  end
  mark = lease_or_drop(message, id, message_id, skip, unique, mark, due,
    tracking_text(due, unique, task))
  release_key(unique, id, message_id)
  from_lanes = from_lanes + 1
  if mark then
    lease_to_process(message, step, '', permit .. mark)
  end
  if following then
    redis.call('ZADD', LANES, 'XX', turn_moment(definition, due_in_lane(following), time_us), lane)
  end
end

-- The place of the ready list with the priority step of the first entry of the next lane, and whether
-- its permits are scarce.
local function read_next_lane()
  local lane = redis.call('ZRANGE', LANES, 0, 0)[1]
  local _, is_scarce = moment_of_next(lane, limit_of(lane), time_us)
  local first, last = lane_range(lane)
  local head = redis.call('ZRANGEBYLEX', HELD, first, last, 'LIMIT', 0, 1)[1] or ''
  local step = tonumber(string.match(head, '^[^%z]*%z(%d+)%z'))
  for i = FIRST.steps, #ARGV do
    if tonumber(ARGV[i]) == step then
      return i - FIRST.steps + 1, is_scarce
    end
  end
  return 1, is_scarce
end

local function take_held(most)
  more_freed = unblock_freed_lanes(queue, time_us)
  local passed = 0
  while place < most and lane_tries_left > 0 and bytes_left > 0 do
    local lane = redis.call('ZRANGEBYSCORE', LANES, '-inf', time_us, 'LIMIT', passed, 1)[1]
    if not lane then
      break
    end
    lane_tries_left = lane_tries_left - 1
    local definition = limit_of(lane)
    local moment, is_scarce = moment_of_next(lane, definition, time_us)
    if moment == time_us and is_scarce and most_limited == 0 then
      passed = passed + 1 -- for another process
    elseif moment == time_us then
      take_first(lane, definition, is_scarce)
    else
      redis.call('ZADD', LANES, moment == math.huge and '+inf' or moment, lane)
      if moment == math.huge then
        redis.call('ZADD', KEYS.blocked_lanes, 0, lane .. '\0' .. queue)
      end
    end
  end
end

-- Where lanes may go and messages are ready, both get half of the places. Of an odd number, the last
-- one goes to either; a process whose requests follow a pattern favours none by the golden ratio.
local function take_in_turn()
  if has_lanes then
    local turn = tonumber(request_number) * 0.618034 % 1 < 0.5 and 0 or 1
    local share = math.floor((most_messages + turn) / 2)
    take_held(ready_count > 0 and share or most_messages)
  end
  take_ready(most_messages)
  if has_lanes then
    take_held(most_messages)
  end
end
-- @end

if tonumber(request_number) <= last_request_number then
  repeat_reply()
-- @without limits
elseif not (has_limits or has_lanes or paused or take_quarantined()) then
  take_ready(most_messages)
-- @end
-- @with limits
elseif not paused and not take_quarantined() then
  take_in_turn()
-- @end
end
write_fields()
local pushed_by_others = count_others(TOTALS, waiting_before)
add_total(TOTALS, 'ready', pushed_by_others + ready_count + quarantined - waiting_before)
if pushed_by_others > 0 then
  reply[2] = reply[2] .. '+'
end
if has_limits or has_lanes then
  reply[2] = reply[2] .. '~'
end
-- @with limits
add_total(TOTALS, 'promoted', from_lanes)
add_total(TOTALS, 'ready', -from_lanes)
-- @end
add_total(TOTALS, 'cancelled', dropped['!'] or 0)
add_total(TOTALS, 'replaced', dropped['!!'] or 0)
add_total(TOTALS, 'dead:skipped', dropped[LATE] or 0)
if #reply > 4 then
  redis.call('HSET', KEYS.request_numbers, worker_id,
    math.max(last_request_number, tonumber(request_number)))
  if lease_end < new_lease_end then
    -- One hundredth longer, so that the next calls need not extend the lease.
    extend_lease(KEYS.leases, KEYS.lease_ends, queue, worker_id,
      new_lease_end + math.floor(lease / 100))
  end
end
if not paused then
  for i = #KEYS, FIRST.ready_lists, -1 do
    if ready[i] > 0 then
      reply[1] = i - FIRST.ready_lists + 1
    end
  end
end
local waiting = not paused and quarantined > 0 and redis.call('EXISTS', KEYS.quarantine_turn) == 0
if reply[1] > 0 or waiting then
  wake_consumers(KEYS.wake)
else
  redis.call('DEL', KEYS.wake)
end
-- @without limits
if has_limits or has_lanes then
  reply[1] = math.max(reply[1], paused and 0 or 1) -- the process asks again, with +limits
end
-- @end
-- @with limits
if has_limits then
  forget_old_slots(time_us, place + 10)
end
if has_lanes then
  local next_moment, lane = next_lane_moment(LANES, time_us)
  if next_moment and next_moment * 1000 > latest_moment(limit_of(lane), time_us) + 1000 then
    -- The clock was set back: see dispatch/promote.lua.
    redis.call('ZADD', LANES, time_us, lane)
    next_moment = to_ms(time_us)
  end
  if more_freed then
    next_moment = to_ms(time_us)
  end
  if next_moment then
    plan_look(KEYS.next_due, queue, next_moment, time_us, ARGV.wake_channel)
  end
  if may_lane_go(time_us) and not paused then
    wake_consumers(KEYS.lanes_wake)
    local lane_place, is_scarce = read_next_lane()
    reply[1] = reply[1] > 0 and math.min(reply[1], lane_place) or lane_place
    reply[2] = reply[2] .. (is_scarce and '^' or '')
  else
    redis.call('DEL', KEYS.lanes_wake)
  end
end
-- @end
if (in_ready_index > 0 and has_rare or in_ready_index > untracked) and ready_count == 0
  and quarantined == 0 then
  forget_waiting()
end
if resume_below and ready_count < (read_whole(resume_below) or 0) then
  look_when_below(KEYS.pace, KEYS.next_due, queue, time_us, ARGV.wake_channel)
end
reply[3] = string.format('%.0f', read_whole(revision) or 0) .. table.concat(reply_fields)
reply[4] = table.concat(reply_counts)
return reply
