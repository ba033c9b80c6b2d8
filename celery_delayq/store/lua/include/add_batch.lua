-- Store a batch of messages until they are due. A message that is due becomes ready at once.
--
-- Defines  batch  clear_batch_lists  begin_batch  write_batch  hold_in_lane  store_or_make_ready  is_full
--            REFUSED  release_taken_keys  may_be_taken  store_with_free_key  store_with_unique_key  store_message
--            end_batch
-- Expects  FIRST.next_due  KEYS.wake  KEYS.lanes_wake  KEYS.limits
--          clock: to_ms
--          tracking: expect_state  DUE  TASKS  UNIQUE  READY_INDEX  forget_waiting  TOTALS
--          types: expect_type  expect_types  expect_all
--          record: read_record  read_label  due_text  read_unique  task_member
--          entry_store: is_tracked  is_scheduled  put_ready  put_record
--          wake: wake_consumers
--          unique_policy: owner_text  key_since  same_keys  plan_unique_key  supersede_owner  take_key
--          totals: add_total
--          dispatch/next_due: register_due
--          limits/lanes: limited_lane  due_of_arrival  hold_entries

local batch = {first = math.huge, looked = false, scheduled = 0, ready = 0, replaced = 0, held = 0}

local function clear_batch_lists()
  batch.dues, batch.members, batch.keys, batch.key_taken = {}, {}, {}, {}
  batch.to_hold = {}
end

clear_batch_lists()

-- Begin a batch. In KEYS, next_due and queues follow the keys of the state. 'most' is how many
-- entries may be scheduled, 0 for no limit. The ready lists are the last KEYS, from 'first' on. If
-- a message may have a unique key, KEYS has all ready lists.
local function begin_batch(time_us, most, first)
  batch.time_us, batch.now = time_us, to_ms(time_us)
  batch.lists = {select(first, unpack(KEYS))}
  batch.tracked = expect_state()
  expect_types(FIRST.next_due, 'zset', 'hash')
  -- @with limits
  expect_type(KEYS.limits, 'hash')
  -- @end
  expect_all(first, 'list')
  batch.room = most > 0 and most - redis.call('ZCARD', DUE) or math.huge
end

-- Write the entries and unique keys of the batch. One ZADD of many members takes a third of the
-- time.
local function write_batch()
  if #batch.dues > 0 then
    redis.call('ZADD', DUE, unpack(batch.dues))
  end
  if #batch.members > 0 then
    redis.call('ZADD', TASKS, unpack(batch.members))
  end
  -- @with limits
  if #batch.to_hold > 0 and hold_entries(batch.to_hold, batch.time_us) then
    wake_consumers(KEYS.lanes_wake)
  end
  -- @end
  if #batch.keys > 0 then
    redis.call('HSET', UNIQUE, unpack(batch.keys))
  end
  clear_batch_lists()
end

-- @with limits
-- Hold a message that is due: its limit makes it wait.
local function hold_in_lane(id, due, data, lane)
  local step, message_id, task = read_record(data)
  local name = put_record(id, data, message_id)
  if not name then
    return 'd'
  end
  due = due > 0 and due or due_of_arrival(lane, step, batch.now)
  batch.room, batch.scheduled, batch.held = batch.room - 1, batch.scheduled + 1, batch.held + 1
  batch.to_hold[#batch.to_hold + 1] = {name, step, due, lane}
  local members = batch.members
  members[#members + 1], members[#members + 2] = '0', task_member(task, due, name)
  return 's'
end
-- @end

local function store_or_make_ready(id, due, list, data)
  local _, message_id, task, start = read_record(data)
  local now = batch.now
  if batch.tracked and is_tracked(id, message_id) then
    return 'd'
  end
  if due <= now then
    -- @with limits
    local _, _, _, _, behind = read_label(data, start)
    local lane = limited_lane(data, behind)
    if lane then
      return hold_in_lane(id, due, data, lane)
    end
    -- @end
    if is_scheduled(id, message_id) then
      return 'd'
    end
    put_ready(list, KEYS.wake, due, now, data, task, start)
    batch.tracked, batch.ready = true, batch.ready + 1
    return 'r'
  end
  local name = put_record(id, data, message_id)
  if not name then
    return 'd'
  end
  batch.room, batch.scheduled = batch.room - 1, batch.scheduled + 1
  -- As texts, since Redis formats numbers slowly.
  local dues, members, text = batch.dues, batch.members, due_text(due)
  dues[#dues + 1], dues[#dues + 2] = text, name
  members[#members + 1], members[#members + 2] = '0', task .. '\0' .. text .. '\0' .. name
  if due < batch.first then
    batch.first = due
  end
  return 's'
end

-- Whether the queue is full for a message. It is never full for a message that it already has, nor
-- for one that becomes ready at once.
local function is_full(id, due, data)
  if batch.room > 0 then
    return false
  end
  local _, message_id, _, start = read_record(data)
  if due <= batch.now then
    local lane
    -- @with limits
    local _, _, _, _, behind = read_label(data, start)
    lane = limited_lane(data, behind)
    -- @end
    if not lane then
      return false
    end
  end
  return not (is_scheduled(id, message_id) or is_tracked(id, message_id))
end

local REFUSED = {keep = 'K', error = 'E', superseded = 'O'}

-- If no message is ready, stock workers have taken those that READY_INDEX lists. Their unique keys
-- are free.
local function release_taken_keys()
  batch.looked = true
  if redis.call('EXISTS', READY_INDEX) == 0 then
    return -- nothing is to be written before what a full server refuses
  end
  for _, list in ipairs(batch.lists) do
    if redis.call('EXISTS', list) == 1 then
      return
    end
  end
  forget_waiting()
end

-- Whether another message may have a unique key, maybe under a former name of its task.
local function may_be_taken(key, policy)
  for _, each in ipairs(same_keys(key, policy)) do
    if batch.key_taken[each] or redis.call('HEXISTS', UNIQUE, each) == 1 then
      return true
    end
  end
  return false
end

-- Store a message whose unique key is free.
local function store_with_free_key(id, message_id, due, list, data, policy, unique)
  if is_full(id, due, data) then
    return 'f'
  end
  local code = store_or_make_ready(id, due, list, data)
  if code == 's' or code == 'r' and string.sub(unique, 1, 1) == 'd' then
    local key, keys = string.sub(unique, 2), batch.keys
    keys[#keys + 1], keys[#keys + 2] = key, owner_text(key_since(policy, batch.now), id, message_id)
    batch.key_taken[key] = true
  end
  return code
end

local function store_with_unique_key(id, due, list, data, policy)
  local _, message_id, _, start = read_record(data)
  local unique = read_unique(data, start)
  if not may_be_taken(string.sub(unique, 2), policy) then
    return store_with_free_key(id, message_id, due, list, data, policy, unique)
  end
  write_batch() -- what has the key may be among them
  -- A repeated call is a duplicate, even if another message has replaced the message since.
  if is_scheduled(id, message_id) or (batch.tracked and is_tracked(id, message_id)) then
    return 'd'
  end
  if batch.tracked and not batch.looked then
    release_taken_keys()
  end
  local plan = plan_unique_key(unique, id, due, batch.now, policy)
  if REFUSED[plan.what] then
    return REFUSED[plan.what], plan.owner
  elseif plan.state ~= 'scheduled' and is_full(id, plan.due, data) then
    return 'f'
  end
  supersede_owner(plan)
  if plan.state == 'scheduled' then
    batch.room, batch.replaced = batch.room + 1, batch.replaced + 1
  end
  local code = store_or_make_ready(id, plan.due, list, data)
  if plan.what == 'store' and (code == 's' or string.sub(unique, 1, 1) == 'd') then
    take_key(plan, id, message_id)
  end
  if plan.state == 'scheduled' or plan.state == 'waiting' then
    return string.upper(code), plan.owner, plan.state == 'scheduled' and plan.value or ''
  end
  return code
end

-- Store one message. Returns a code of schedule/add.lua and, if another message has the unique key,
-- the id of that message. If that message was replaced, also returns its record, '' if it was
-- ready.
local function store_message(id, due, list, data, policy)
  if policy ~= '' then
    return store_with_unique_key(id, due, list, data, policy)
  elseif is_full(id, due, data) then
    return 'f'
  end
  return store_or_make_ready(id, due, list, data)
end

-- End a batch, and plan a look at the queue. Counts the messages as 'accepted' or 'replayed'.
local function end_batch(next_due, queues, queue, layout, channel, counted)
  write_batch()
  if counted == 'accepted' then
    add_total(TOTALS, 'accepted', batch.scheduled)
    add_total(TOTALS, 'pushed', batch.ready)
  else
    add_total(TOTALS, counted, batch.scheduled + batch.ready)
    add_total(TOTALS, 'ready', batch.ready)
  end
  add_total(TOTALS, 'replaced', batch.replaced)
  if batch.first < math.huge then
    register_due(next_due, queues, queue, layout, batch.first, batch.time_us, channel)
  elseif batch.ready + batch.held > 0 then
    -- Commands find messages by id only in registered queues.
    redis.call('HSETNX', queues, queue, layout)
  end
end
