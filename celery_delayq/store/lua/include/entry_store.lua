-- Store entries in the schedule, and make messages ready.
--
-- Defines  due_of_text  is_scheduled  is_tracked  put_record  put_entry  put_ready
-- Expects  tracking: names_of_message  ENTRIES  find_tracked  READY_INDEX  LEASED_INDEX
--            has_duplicate_ids  duplicate_name  list_duplicate  DUE  TASKS  track_message
--            tracking_text
--          record: read_record  task_member  message_in  read_label
--          wake: wake_consumers

-- The due of an entry (ms): '+5' counts from now, '5' is absolute. Rounded up, so that no entry is
-- early.
local function due_of_text(text, clock_us)
  local due = tonumber(text)
  if string.byte(text) == 43 then
    due = math.ceil(clock_us / 1000) + due
  end
  return due
end

-- Whether a message is in the schedule already: a caller repeats a call whose reply was lost. Also
-- returns the number of bytes read.
local function is_scheduled(id, message_id)
  local bytes = 0
  for _, name in ipairs(names_of_message(id, message_id)) do
    local data = redis.call('HGET', ENTRIES, name) or ''
    bytes = bytes + #data
    local _, there = read_record(data)
    if there == message_id then
      return true, bytes
    end
  end
  return false, bytes
end

-- Whether a message is ready or leased already.
local function is_tracked(id, message_id)
  return (find_tracked(READY_INDEX, id, message_id)
    or find_tracked(LEASED_INDEX, id, message_id)) ~= nil
end

-- Store a record and return its name; nil if the same message is there already. This comes before
-- any other write: a full server refuses this one, so no message is stored in part.
local function put_record(id, data, message_id)
  if has_duplicate_ids() and redis.call('HEXISTS', ENTRIES,
    duplicate_name(id, message_id)) == 1 then
    return nil
  end
  if redis.call('HSETNX', ENTRIES, id, data) == 1 then
    return id
  end
  local _, message_id_there = read_record(redis.call('HGET', ENTRIES, id))
  if message_id_there ~= message_id then
    -- A task id that was sent twice on purpose, or a retry beside a redelivery: both run.
    local name = duplicate_name(id, message_id)
    if redis.call('HSETNX', ENTRIES, name, data) == 1 then
      list_duplicate(name)
      return name
    end
  end
  return nil
end

-- Store an entry and return its name; nil if the same message is there already.
local function put_entry(id, due, data, message_id, task)
  local name = put_record(id, data, message_id)
  if name then
    redis.call('ZADD', DUE, due, name)
    redis.call('ZADD', TASKS, 0, task_member(task, due, name))
  end
  return name
end

-- Make a due message ready. Its record is not stored.
local function put_ready(list, marker, due, now, data, task, start)
  redis.call('LPUSH', list, message_in(data, start))
  local id, message_id, _, unique = read_label(data, start)
  if id then
    track_message(READY_INDEX, id, message_id, tracking_text(due > 0 and due or now, unique, task))
  end
  wake_consumers(marker)
end
