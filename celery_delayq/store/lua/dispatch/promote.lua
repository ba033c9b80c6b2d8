-- Move due entries to the ready lists, earliest first, at most a batch and about 1 MB.
--
-- A due entry of a paused task becomes paused and due, and is promoted after the task is resumed. A
-- due entry of a task with a limit is held in its lane; leases/acquire.lua takes it from there.
-- No entry of a paused queue is moved. leases/acquire.lua drops messages that are later than
-- skip_after. A tick of a periodic entry is dropped if no dispatcher ran at its due time, and its
-- time to catch up is over.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  dead  dead_at  wake  control  pace  quarantined  clock  limits
--          lanes_wake  permits  slots  blocked_lanes  freed_lanes  ready_lists…
-- ARGV     queue  most_entries
--          max_rate: most entries a second, 0 for no limit
--          max_ready: most ready messages, 0 for no limit
--          notes_time: '1' to note in READY_INDEX when a message became ready, else '0'
--          notes_dispatcher: '1' to note in the clock that a dispatcher promotes
--          dispatcher: '' for a dispatcher that does not take the duty
--          steps_and_queues…: the priority steps of ready_lists, then queues that the dispatcher
--            leaves to others
-- Returns  {now (µs), queue to look at next, its due (ms), moved, dead_lettered, 1 if the
--          dispatcher is on duty, else 0}
-- Repeat   goes on with the entries that are due then
-- Roles    worker, dispatcher
-- @include clock
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include totals
-- @include limits/lanes
-- @include dispatch/next_due
-- @include limits/permits
-- @include dead_letter
-- @include wake
-- @include dispatch/rate_limit
-- @include dispatch/duty

local queue, most_entries = ARGV.queue, tonumber(ARGV.most_entries)
local time_us = now_us()
local now = to_ms(time_us)

local list_of, lists = {}, {}
local other_queues_from = FIRST.steps_and_queues + #KEYS - FIRST.ready_lists + 1
for i = FIRST.ready_lists, #KEYS do
  list_of[ARGV[i + (FIRST.steps_and_queues - FIRST.ready_lists)]] = KEYS[i]
  lists[#lists + 1] = KEYS[i]
end

local queue_paused, revision = unpack(redis.call('HMGET', KEYS.control, 'q' .. queue, 'revision'))
if queue_paused then
  redis.call('ZREM', KEYS.next_due, queue)
  local reply = next_due_head(KEYS.next_due, time_us, other_queues_from)
  reply[4], reply[5], reply[6] = 0, 0, take_duty(KEYS.clock, ARGV.dispatcher, false, now)
  return reply
end

local paused = {}
local noted = ARGV.notes_time == '1' and string.format(' %.0f', now) or ''

local function is_paused(task)
  if paused[task] == nil then
    paused[task] = revision and redis.call('HEXISTS', KEYS.control, 't' .. task) == 1
  end
  return paused[task]
end

-- Make paused entries of resumed tasks due again. Returns whether more may follow, and the number
-- of entries.
--
-- One call checks 100 tasks. PACE keeps, as 'unpaused', the revision of the control and the place
-- from which the next call goes on. At the end of all tasks the place is '': no call checks them
-- again before the revision changes. If the first call of a revision reaches the end, it writes
-- nothing: the next call checks these few tasks again.
local function unpause(most)
  expect_all(FIRST.ready_lists, 'list')
  local current = string.format('%.0f', read_whole(revision) or 0)
  local noted = redis.call('HGET', KEYS.pace, 'unpaused') or ''
  local noted_revision, start = string.match(noted, '^(%d+) (.*)$')
  if noted_revision ~= current then
    start = '-'
  elseif start == '' then
    return false, 0
  end
  local tasks, left = 100, most
  while true do
    local first = redis.call('ZRANGEBYLEX', PAUSED_DUE, start, '+', 'LIMIT', 0, 1)[1]
    local task = first and string.match(first, '^[^%z]*')
    if tasks == 0 or (not task and noted_revision == current) then
      redis.call('HSET', KEYS.pace, 'unpaused', current .. ' ' .. (task and start or ''))
    end
    if not task or left <= 0 or tasks == 0 then
      return task ~= nil, most - left
    end
    tasks = tasks - 1
    local after = '(' .. task .. '\1'
    if is_paused(task) then
      start = after
    else
      local batch = redis.call('ZRANGEBYLEX', PAUSED_DUE, '[' .. task, after, 'LIMIT', 0, left)
      for _, member in ipairs(batch) do
        local due, name = string.match(member, '^[^%z]*%z(%d+)%z(.*)$')
        if tonumber(due) > now and redis.call('ZSCORE', DUE, name) then
          -- The entry was due before the clock was set back.
          move_entry(name, due + PAUSED_OFFSET, now, redis.call('HGET', ENTRIES, name))
        else
          redis.call('ZADD', DUE, 'XX', due, name)
          redis.call('ZREM', PAUSED_DUE, member)
        end
      end
      left = left - #batch
    end
  end
end

local function pause_due(due, id, task)
  redis.call('ZADD', DUE, due + PAUSED_OFFSET, id)
  redis.call('ZADD', PAUSED_DUE, 0, task_member(task, due, id))
end

-- After the clock was set back: have lanes tried again whose time is later than their limit makes
-- them wait. Returns whether more may follow.
--
-- One call checks 100 lanes. PACE keeps, as 'lanes', the time of the jump and the place from which
-- the next call goes on, '' at the end of all lanes. If the first call reaches the end, it writes
-- nothing.
local function check_lane_times()
  local set_back = read_whole(redis.call('HGET', KEYS.clock, 'set_back'))
  if not set_back then
    return false
  end
  local noted_set_back, start = string.match(redis.call('HGET', KEYS.pace, 'lanes') or '',
    '^(%d+) (.*)$')
  local is_first = tonumber(noted_set_back) ~= set_back
  if is_first then
    start = '(' .. string.format('%.0f', time_us)
  elseif start == '' then
    return false
  end
  local found = redis.call('ZRANGEBYSCORE', LANES, start, '(+inf', 'WITHSCORES', 'LIMIT', 0, 100)
  local moved = 0
  for i = 1, #found, 2 do
    if tonumber(found[i + 1]) > latest_moment(limit_of(found[i]), time_us) then
      redis.call('ZADD', LANES, time_us, found[i])
      moved = moved + 1
    end
  end
  local is_end = #found < 200
  if not (is_first and is_end) then
    -- Of lanes with one time, some may be left: the next call begins at the same place.
    local place = is_end and '' or moved > 0 and start or '(' .. found[#found]
    redis.call('HSET', KEYS.pace, 'lanes', string.format('%.0f ', set_back) .. place)
  end
  return not is_end
end

-- Whether no dispatcher ran at a due, see dispatch/next_queue.lua.
local function was_missed(due)
  local from, to = unpack(redis.call('HMGET', KEYS.clock, 'away_from', 'away_to'))
  from, to = read_whole(from), read_whole(to)
  return from and to and due > from and due < to
end

expect_types(FIRST.due, 'zset', 'hash', 'zset')
local is_ready_index = read_typed('hash', 'HLEN', READY_INDEX) > 0
local has_rare = expect_rare(
  {PAUSED_DUE, UNIQUE, DUPLICATE_IDS, KEYS.pace, KEYS.dead, KEYS.dead_at, KEYS.limits, HELD, LANES,
    KEYS.freed_lanes},
  {'zset', 'hash', 'zset', 'hash', 'hash', 'zset', 'hash', 'zset'})
local has_limits = has_rare and redis.call('EXISTS', KEYS.limits) == 1
local has_lanes = has_rare and redis.call('EXISTS', LANES) == 1
if has_rare then
  expect_type(LEASED_INDEX, 'hash') -- it tells who has a unique key
end
duplicate_ids_there = has_rare and redis.call('EXISTS', DUPLICATE_IDS) == 1
expect_type(KEYS.clock, 'hash')
-- Moving frees memory, so a full server must accept the script. Redis refuses no command of a
-- script that has already written. This first write changes nothing, and a full server accepts it.
redis.call('ZREM', KEYS.next_due, '')
if is_ready_index and redis.call('EXISTS', KEYS.quarantined, unpack(lists)) == 0 then
  forget_waiting()
end
local more_paused_due, put_back = false, 0
if has_rare and redis.call('EXISTS', PAUSED_DUE) == 1 then
  more_paused_due, put_back = unpause(most_entries)
end
-- Putting back an entry is half of the work of promoting it.
most_entries = most_entries - math.floor(put_back / 2)
local allowed, look_at_ms = promotable_count(KEYS.pace, lists, most_entries,
  tonumber(ARGV.max_rate), tonumber(ARGV.max_ready), time_us)
local due = redis.call('ZRANGEBYSCORE', DUE, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most_entries)
local names, scores = {}, {}
for i = 1, #due, 2 do
  names[#names + 1] = due[i]
  scores[#scores + 1] = tonumber(due[i + 1])
end

-- The script reads and checks all entries before it moves any.
local messages, members, gone_names, labels, unreadable, paused_due, missed = {}, {}, {}, {}, {},
  {}, {}
local to_hold = {}
local moved = 0
for i, name in ipairs(names) do
  if bytes_left <= 0 then
    break
  end
  local data = redis.call('HGET', ENTRIES, name)
  take_bytes(data and #data or 0)
  local priority, _, task, start = read_record(data)
  local id, message_id, skip, unique, behind
  if priority then
    id, message_id, skip, unique, behind = read_label(data, start)
  end
  local lane = has_limits and behind and limited_lane(data, behind)
  if not priority then
    unreadable[#unreadable + 1] = {name, scores[i], data and 'unreadable record' or 'no record',
      data or ''}
    gone_names[#gone_names + 1] = name
  elseif is_paused(task) then
    paused_due[#paused_due + 1] = {scores[i], name, task}
  -- Of a tick, skip is negative: after so long (ms) it is too late to catch the tick up.
  elseif id and skip < 0 and now - scores[i] > -skip and was_missed(scores[i]) then
    missed[#missed + 1] = {name, scores[i], data}
  elseif lane then
    to_hold[#to_hold + 1] = {name, priority, scores[i], lane}
  elseif moved < allowed then
    local list = list_of[priority] or KEYS[FIRST.ready_lists]
    if not messages[list] then
      expect_type(list, 'list')
      messages[list] = {}
    end
    table.insert(messages[list], message_in(data, start))
    members[#members + 1] = task_member(task, scores[i], name)
    gone_names[#gone_names + 1] = name
    if id then
      labels[#labels + 1] = {id, message_id,
        tracking_text(math.max(scores[i], 0), unique, task) .. noted, unique}
    end
    moved = moved + 1
  end
end

for list, batch in pairs(messages) do
  redis.call('LPUSH', list, unpack(batch))
end
if moved > 0 then
  wake_consumers(KEYS.wake)
end
for _, one in ipairs(unreadable) do
  add_dead_letter(KEYS.dead, KEYS.dead_at, one[1], now, one[2], one[3], one[4])
end
for _, one in ipairs(paused_due) do
  pause_due(unpack(one))
end
if #to_hold > 0 then
  hold_entries(to_hold, time_us)
  has_lanes = true
end
for _, one in ipairs(missed) do
  remove_entry(unpack(one))
end
if #gone_names > 0 then
  redis.call('ZREM', DUE, unpack(gone_names))
  redis.call('HDEL', ENTRIES, unpack(gone_names))
  if has_duplicate_ids() then
    redis.call('ZREM', DUPLICATE_IDS, unpack(gone_names))
  end
end
if #members > 0 then
  redis.call('ZREM', TASKS, unpack(members))
end
for _, one in ipairs(labels) do
  track_message(READY_INDEX, one[1], one[2], one[3])
end
for _, one in ipairs(labels) do
  release_key(one[4], one[1], one[2])
end
count_promoted(KEYS.pace, moved, tonumber(ARGV.max_rate))
add_total(TOTALS, 'promoted', moved)
add_total(TOTALS, 'dead:corrupt', #unreadable)
add_total(TOTALS, 'cancelled', #missed) -- a missed tick ends without a run, as a cancelled task
if ARGV.notes_dispatcher == '1' then
  redis.call('HSET', KEYS.clock, 'dispatched', now)
end

if moved == 0 then
  -- A resumed queue may have ready messages, and its consumers do not know of them.
  for _, list in ipairs(lists) do
    if redis.call('EXISTS', list) == 1 then
      wake_consumers(KEYS.wake)
    end
  end
end
local more_lanes = has_rare and unblock_freed_lanes(queue, time_us)
if has_lanes then
  more_lanes = check_lane_times() or more_lanes
  if may_lane_go(time_us) then
    wake_consumers(KEYS.lanes_wake)
  end
end
plan_next_look(KEYS.next_due, queue, DUE, has_lanes and LANES, time_us)
if more_paused_due or more_lanes then
  redis.call('ZADD', KEYS.next_due, 'LT', now, queue)
elseif look_at_ms and moved == allowed then
  redis.call('ZADD', KEYS.next_due, 'XX', 'GT', look_at_ms, queue)
end
local reply = next_due_head(KEYS.next_due, time_us, other_queues_from)
reply[4], reply[5], reply[6] = moved, #unreadable,
  take_duty(KEYS.clock, ARGV.dispatcher, moved > 0, now)
return reply
