-- Lease messages of one queue to a process, at most as many as it asks for and about 1 MB.
--
-- A paused queue leases none.
--
-- KEYS     due  entries  tasks  paused_due  unique  duplicate_ids  ready_index  leased_index
--          totals  next_due  wake  leased  leases  lease_ends  clock  deliveries  quarantined
--          quarantine_turn  request_numbers  control  pace  dead  dead_at
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
--          steps…: the priority steps of ready_lists
-- Returns  a list:
--          1  the place of the first ready list that is not empty, 0 for none
--          2  '1' if the message is delivered alone; '2' if the process must acknowledge or requeue
--             all its messages before it takes another one; else '0'. A '+' follows if stock
--             producers have pushed messages
--          3  the revision of pauses and revokes. Then for each message a space and its field:
--             '<request_number>:<place>[<mark>[<ms late>]][@<when ready, ms>]'
--             (include/tracking.lua has the marks)
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
-- @include dead_letter
-- @include dispatch/rate_limit

local queue, worker_id = ARGV.queue, ARGV.worker_id
local lease, request_number = tonumber(ARGV.lease_ms), ARGV.request_number
local limit, list_count = tonumber(ARGV.most_messages), tonumber(ARGV.list_count)
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
  select(FIRST.ready_lists + 1, unpack(KEYS))}
local has_rare = redis.call('EXISTS', unpack(rare)) > 0
if has_rare then
  has_deliveries = read_typed('hash', 'HLEN', KEYS.deliveries) > 0
  quarantined = read_typed('list', 'LLEN', KEYS.quarantined)
  resume_below = read_typed('hash', 'HGET', KEYS.pace, 'below')
end
if has_rare and (has_ready_index or has_leased_index) then
  expect_type(ENTRIES, 'hash')
  expect_type(UNIQUE, 'hash')
  expect_type(DUPLICATE_IDS, 'zset')
  expect_types(FIRST.dead, 'hash', 'zset')
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

-- Note which process has leased a message. Returns the time when the message became ready ('' if
-- unknown) and its mark. Returns nil for a message that does not run and is dropped.
local function admit_message(message)
  local id, its_message_id, skip, unique = read_label(message)
  if not id then
    return '', ''
  end
  local mark, due, rest, promoted, was_there = untrack_message(READY_INDEX, id, its_message_id,
    unique)
  untracked = untracked + (was_there and 1 or 0)
  if mark == '' and skip > 0 and due > 0 and to_ms(time_us) - due > skip then
    mark = LATE
  end
  if mark == '' or ARGV.reports_not_run == '1' and not has_other(id, its_message_id) then
    track_message(LEASED_INDEX, id, its_message_id, rest .. ' ' .. worker_id, mark)
    if mark ~= '' then
      release_key(unique, id, its_message_id)
    end
    return promoted, mark_for_process(mark, due)
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

-- The mark of a message that is already leased to the process.
local function mark_of(message)
  local id, its_message_id = read_label(message)
  local _, value
  if id then
    _, value = find_tracked(LEASED_INDEX, id, its_message_id)
  end
  local mark, _, due = read_tracked(value)
  return mark_for_process(mark or '', tonumber(due or 0))
end

-- Reply with the messages that an earlier call has leased. The reply of that call was lost, or the
-- call came late over a closed connection.
local function repeat_reply()
  for place = 1, limit do
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
  local item = redis.call('LINDEX', KEYS.quarantined, -1)
  local step, _, start = read_leased(item)
  local message = message_in(item, start or 1)
  local promoted, its_mark = admit_message(message)
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

local function take_ready()
  local place, fields = 0, {}
  local function write_fields()
    if #fields > 0 then
      redis.call('HSET', KEYS.leased, unpack(fields))
      fields = {}
    end
  end
  for i = FIRST.ready_lists, FIRST.ready_lists + list_count - 1 do
    for _ = 1, math.min(ready[i], limit - place) do
      if bytes_left <= 0 then
        break
      end
      local message = redis.call('RPOP', KEYS[i])
      take_bytes(#message)
      ready[i] = ready[i] - 1
      ready_count = ready_count - 1
      local promoted, mark = admit_message(message)
      if promoted then
        place = place + 1
        local field = request_number .. ':' .. place
        fields[#fields + 1] = field
        fields[#fields + 1] = leased_value(ARGV[i + (FIRST.steps - FIRST.ready_lists)], message)
        add_to_reply(field, message, promoted, mark)
      end
      if #fields >= 1000 then
        write_fields() -- the stack of Lua has an end
      end
    end
  end
  write_fields()
end

if tonumber(request_number) <= last_request_number then
  repeat_reply()
elseif not paused and not take_quarantined() then
  take_ready()
end
local pushed_by_others = count_others(TOTALS, waiting_before)
add_total(TOTALS, 'ready', pushed_by_others + ready_count + quarantined - waiting_before)
if pushed_by_others > 0 then
  reply[2] = reply[2] .. '+'
end
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
