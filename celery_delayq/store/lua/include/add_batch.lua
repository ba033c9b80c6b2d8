-- Storing messages, one after the other, until they are due; those whose moment has passed go to
-- ready at once.
--
-- Defines  putting  list_none  begin_puts  list_entries  store  is_full  REFUSED  look_for_taken
--            store_first  store_unique  put  end_puts
-- Expects  FIRST.next_due
--          clock: to_ms
--          tracking: expect_state  DUE  TASKS  UNIQUE  READY_INDEX  forget_waiting  TOTALS
--          types: expect_types  expect_all
--          record: read_record  due_text  read_unique
--          entry_store: is_tracked  is_scheduled  put_ready  put_record
--          unique_policy: owner_text  since_of  decide  supersede  take_key
--          totals: add_total
--          dispatch/next_due: announce

local putting = {first = math.huge, looked = false, scheduled = 0, ready = 0, replaced = 0}

local function list_none()
  putting.dues, putting.members, putting.keys, putting.key_taken = {}, {}, {}, {}
end

list_none()

-- Begin, with next_due and queues behind the state; 'most' is how many entries may be scheduled, 0
-- for no limit. The ready lists are the last KEYS, from 'first' on: all of them, if something may
-- have a unique key.
local function begin_puts(clock, most, marker, first)
  putting.clock, putting.now = clock, to_ms(clock)
  putting.marker, putting.lists = marker, {select(first, unpack(KEYS))}
  putting.tracked = expect_state()
  expect_types(FIRST.next_due, 'zset', 'hash')
  expect_all(first, 'list')
  putting.room = most > 0 and most - redis.call('ZCARD', DUE) or math.huge
end

-- Entries and the unique keys that they have are listed together: one ZADD for many is a third of
-- the time.
local function list_entries()
  if #putting.dues > 0 then
    redis.call('ZADD', DUE, unpack(putting.dues))
    redis.call('ZADD', TASKS, unpack(putting.members))
  end
  if #putting.keys > 0 then
    redis.call('HSET', UNIQUE, unpack(putting.keys))
  end
  list_none()
end

local function store(id, due, list, data)
  local _, message_id, task, start = read_record(data)
  local now = putting.now
  if (putting.tracked and is_tracked(id, message_id)) or (due <= now and is_scheduled(id, message_id)) then
    return 'd'
  end
  if due <= now then
    put_ready(list, putting.marker, due, now, data, task, start)
    putting.tracked, putting.ready = true, putting.ready + 1
    return 'r'
  end
  local name = put_record(id, data, message_id)
  if not name then
    return 'd'
  end
  putting.room, putting.scheduled = putting.room - 1, putting.scheduled + 1
  -- As texts: Redis takes long to print a number.
  local dues, members, text = putting.dues, putting.members, due_text(due)
  dues[#dues + 1], dues[#dues + 2] = text, name
  members[#members + 1], members[#members + 2] = '0', task .. '\0' .. text .. '\0' .. name
  if due < putting.first then
    putting.first = due
  end
  return 's'
end

-- Whether another entry would be one too many: not when the same is there already.
local function is_full(id, due, data)
  if putting.room > 0 or due <= putting.now then
    return false
  end
  local _, message_id = read_record(data)
  return not (is_scheduled(id, message_id) or is_tracked(id, message_id))
end

local REFUSED = {keep = 'K', error = 'E', superseded = 'O'}

-- Where nothing is ready, what stock workers took is waiting no more, and its key is free.
local function look_for_taken()
  putting.looked = true
  if redis.call('EXISTS', READY_INDEX) == 0 then
    return -- nothing is to be written before what a full server refuses
  end
  for _, list in ipairs(putting.lists) do
    if redis.call('EXISTS', list) == 1 then
      return
    end
  end
  forget_waiting()
end

-- A message whose unique key nothing has.
local function store_first(id, message_id, due, list, data, policy, unique)
  if is_full(id, due, data) then
    return 'f'
  end
  local code = store(id, due, list, data)
  if code == 's' or code == 'r' and string.sub(unique, 1, 1) == 'd' then
    local key, keys = string.sub(unique, 2), putting.keys
    keys[#keys + 1], keys[#keys + 2] = key, owner_text(since_of(policy, putting.now), id, message_id)
    putting.key_taken[key] = true
  end
  return code
end

local function store_unique(id, due, list, data, policy)
  local _, message_id, _, start = read_record(data)
  local unique = read_unique(data, start)
  local key = string.sub(unique, 2)
  if not putting.key_taken[key] and redis.call('HEXISTS', UNIQUE, key) == 0 then
    return store_first(id, message_id, due, list, data, policy, unique)
  end
  list_entries() -- what has the key may be among them
  -- Also when another has replaced it since: that one is to stay.
  if is_scheduled(id, message_id) or (putting.tracked and is_tracked(id, message_id)) then
    return 'd'
  end
  if putting.tracked and not putting.looked then
    look_for_taken()
  end
  local plan = decide(unique, id, due, putting.now, policy)
  if REFUSED[plan.what] then
    return REFUSED[plan.what], plan.owner
  elseif plan.state ~= 'scheduled' and is_full(id, plan.due, data) then
    return 'f'
  end
  supersede(plan)
  if plan.state == 'scheduled' then
    putting.room, putting.replaced = putting.room + 1, putting.replaced + 1
  end
  local code = store(id, plan.due, list, data)
  if plan.what == 'store' and (code == 's' or string.sub(unique, 1, 1) == 'd') then
    take_key(plan, id, message_id)
  end
  if plan.state == 'scheduled' or plan.state == 'waiting' then
    return string.upper(code), plan.owner, plan.state == 'scheduled' and plan.value or ''
  end
  return code
end

-- Store one message. Returns what became of it, in the codes of schedule/add.lua, the id of another
-- that it is about, and the record of what it has replaced, '' when that had been ready.
local function put(id, due, list, data, policy)
  if policy ~= '' then
    return store_unique(id, due, list, data, policy)
  elseif is_full(id, due, data) then
    return 'f'
  end
  return store(id, due, list, data)
end

-- End, and have dispatchers look. Counts them as 'accepted' or 'replayed'.
local function end_puts(next_due, queues, queue, layout, channel, counted)
  list_entries()
  if counted == 'accepted' then
    add_total(TOTALS, 'accepted', putting.scheduled)
    add_total(TOTALS, 'pushed', putting.ready)
  else
    add_total(TOTALS, counted, putting.scheduled + putting.ready)
    add_total(TOTALS, 'ready', putting.ready)
  end
  add_total(TOTALS, 'replaced', putting.replaced)
  if putting.first < math.huge then
    announce(next_due, queues, queue, layout, putting.first, putting.clock, channel)
  elseif putting.ready > 0 then
    -- They are found by id, in the queues of the registry.
    redis.call('HSETNX', queues, queue, layout)
  end
end
