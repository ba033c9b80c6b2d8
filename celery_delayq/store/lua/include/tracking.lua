-- Track where a message is (scheduled, ready or leased), and which message has a unique key.
--
-- Defines  DUE  ENTRIES  TASKS  PAUSED_DUE  HELD  LANES  UNIQUE  DUPLICATE_IDS  READY_INDEX
--            LEASED_INDEX  TOTALS  duplicate_name  duplicate_ids_there  ready_there  leased_there
--            has_duplicate_ids  list_duplicate
--            names_of_message  expect_state  read_tracked  find_tracked  track_message
--            tracking_text  untrack_message  read_owner  find_owner  release_key
--            forget_waiting  forget_tracked  lane_member  due_in_lane  lane_range  leave_lane  leave_wait  move_entry
--            take_entry  remove_entry
-- Expects  KEYS.due  KEYS.entries  KEYS.tasks  KEYS.paused_due  KEYS.held  KEYS.lanes  KEYS.unique
--            KEYS.duplicate_ids  KEYS.ready_index  KEYS.leased_index  KEYS.totals  FIRST.due
--          types: expect_types  expect_rare  expect_type
--          record: read_label  read_record  read_unique  read_lane  task_member  due_at  due_text
--            PAUSED_OFFSET

-- The first KEYS of all scripts about entries.
local DUE, ENTRIES, TASKS, PAUSED_DUE = KEYS.due, KEYS.entries, KEYS.tasks, KEYS.paused_due
local HELD, LANES = KEYS.held, KEYS.lanes
local UNIQUE, DUPLICATE_IDS = KEYS.unique, KEYS.duplicate_ids
local READY_INDEX, LEASED_INDEX = KEYS.ready_index, KEYS.leased_index
local TOTALS = KEYS.totals

-- An entry that has left the schedule is in READY_INDEX while it is ready, and in LEASED_INDEX
-- while it is leased. The field is its name, the value "<message_id> <due ms> <unique key or ->
-- <task> [<worker_id>]". A message with a mark before this value does not run: '!' it was
-- cancelled, '!!' another message has its unique key, '!!!' it is later than its skip_after. When
-- its turn comes, a worker reports the message, or leases/acquire.lua drops it. With a history of
-- runs, READY_INDEX has no worker id, but the time (ms) when dispatch/promote.lua made the message
-- ready.

-- The name of an entry is its id. If another message with the same id has this name, the name is
-- "<id> NUL <message_id>". DUPLICATE_IDS lists names of this second kind.
local function duplicate_name(id, message_id)
  return id .. '\0' .. message_id
end

-- Whether DUPLICATE_IDS exists. It mostly does not, and then scripts look up one name only. Whether
-- READY_INDEX and LEASED_INDEX exist; nil before expect_state.
local duplicate_ids_there, ready_there, leased_there

local function has_duplicate_ids()
  if duplicate_ids_there == nil then
    duplicate_ids_there = redis.call('EXISTS', DUPLICATE_IDS) == 1
  end
  return duplicate_ids_there
end

local function list_duplicate(name)
  if string.find(name, '\0', 1, true) then
    redis.call('ZADD', DUPLICATE_IDS, 0, name)
    duplicate_ids_there = true
  end
end

-- The names that a message may have.
local function names_of_message(id, message_id)
  return has_duplicate_ids() and {id, duplicate_name(id, message_id)} or {id}
end

-- Refuse keys of another type before the first write. Returns whether any message is ready or
-- leased.
local function expect_state()
  expect_types(FIRST.due, 'zset', 'hash', 'zset')
  local some = expect_rare({PAUSED_DUE, HELD, LANES, UNIQUE, DUPLICATE_IDS},
    {'zset', 'zset', 'zset', 'hash', 'zset'})
  duplicate_ids_there = some and redis.call('EXISTS', DUPLICATE_IDS) == 1
  ready_there, leased_there = expect_type(READY_INDEX, 'hash'), expect_type(LEASED_INDEX, 'hash')
  return ready_there or leased_there
end

-- Read a value of READY_INDEX or LEASED_INDEX: mark, message id, due, unique key, task, worker id.
local function read_tracked(value)
  return string.match(value or '', '^(!*)(%S+) (%d+) (%S+) (%S*) ?(.*)$')
end

-- Name and value of a message in READY_INDEX or LEASED_INDEX; nil if the index does not have it.
local function find_tracked(index, id, message_id)
  for _, name in ipairs(names_of_message(id, message_id)) do
    local value = redis.call('HGET', index, name)
    local _, found = read_tracked(value)
    if found == message_id then
      return name, value
    end
  end
end

local function track_message(index, id, message_id, rest, mark)
  local value = (mark or '') .. message_id .. ' ' .. rest
  ready_there = ready_there or index == READY_INDEX
  if redis.call('HSETNX', index, id, value) == 1 then
    return
  end
  local name = id
  local _, other = read_tracked(redis.call('HGET', index, id))
  if other ~= message_id then
    name = duplicate_name(id, message_id)
    list_duplicate(name)
  end
  redis.call('HSET', index, name, value)
end

local function tracking_text(due, unique, task)
  return string.format('%.0f ', due) .. unique .. ' ' .. task
end

-- Remove a message from an index. Returns mark, due, the text to track the message in another
-- index, the rest of its value, and whether the index had it. If not, the text comes from the
-- label.
local function untrack_message(index, id, message_id, unique)
  local name, value = find_tracked(index, id, message_id)
  if not name then
    return '', 0, tracking_text(0, unique, ''), ''
  end
  redis.call('HDEL', index, name)
  local mark, _, due, its_unique, task, more = read_tracked(value)
  return mark, tonumber(due), tracking_text(due, its_unique, task), more, true
end

-- The owner of a unique key: id and message id, and the time (ms) since when, if the policy needs
-- it; nil for a free key.
local function read_owner(key)
  local since, id, message_id = string.match(
    redis.call('HGET', UNIQUE, key) or '', '^(%d*)=([^%z]*)%z(%S+)$')
  return id, message_id, tonumber(since)
end

-- The state in which a message has its unique key: 'scheduled', 'waiting' or 'running', then its
-- name and value. nil if the message no longer has the key, for example after a stock worker took
-- it. With scope 's' a message has the key only while it is scheduled, with scope 'd' until it is
-- done.
local function find_owner(id, message_id, key)
  for _, name in ipairs(names_of_message(id, message_id)) do
    local data = redis.call('HGET', ENTRIES, name)
    local _, there, _, start = read_record(data)
    if there == message_id then
      local unique = read_unique(data, start)
      if unique and string.sub(unique, 2) == key then
        return 'scheduled', name, data
      end
    end
  end
  for _, place in ipairs({{'waiting', READY_INDEX}, {'running', LEASED_INDEX}}) do
    local name, value = find_tracked(place[2], id, message_id)
    local mark, _, _, unique = read_tracked(value)
    if mark == '' and unique == 'd' .. key then
      return place[1], name, value
    end
  end
end

-- Release the unique key of a message that has left a state, unless it has the key in another
-- state.
local function release_key(unique, id, message_id)
  if unique == '-' then
    return
  end
  local key = string.sub(unique, 2)
  local owner, owner_message_id = read_owner(key)
  if owner == id and owner_message_id == message_id and not find_owner(id, message_id, key) then
    redis.call('HDEL', UNIQUE, key)
  end
end

-- No message is ready: stock workers have taken those that READY_INDEX lists, so forget them. If no
-- message is scheduled or leased either, no name and no unique key stays.
local function forget_waiting()
  redis.call('UNLINK', READY_INDEX)
  if redis.call('EXISTS', ENTRIES, LEASED_INDEX) == 0 then
    redis.call('UNLINK', DUPLICATE_IDS, UNIQUE)
  end
end

-- Forget a message that was ready or leased. Returns its mark, and of its label id, message id and
-- the place behind it.
local function forget_tracked(index, message, start)
  local id, message_id, _, unique, behind = read_label(message, start)
  local mark = ''
  if id then
    mark = untrack_message(index, id, message_id, unique)
    if has_duplicate_ids() then
      redis.call('ZREM', DUPLICATE_IDS, duplicate_name(id, message_id))
    end
    release_key(unique, id, message_id)
  end
  return mark, id, message_id, behind
end

-- The member of an entry in HELD. Entries of one lane are sorted by priority step and due.
local function lane_member(lane, step, due, name)
  return table.concat({lane, string.format('%03d', step), due_text(due), name}, '\0')
end

-- The due and the name of an entry in its member in HELD. Another program may have written the
-- member: then the due is 0, and no entry has the name.
local function due_in_lane(member)
  local due, name = string.match(member, '^[^%z]*%z%d+%z(%d+)%z(.*)$')
  return tonumber(due or 0), name or ''
end

-- The range of the members of a lane in HELD, and of other keys whose members begin with a name.
local function lane_range(lane)
  return '[' .. lane .. '\0', '(' .. lane .. '\1'
end

-- Take a held entry out of its lane. An empty lane leaves nothing behind.
local function leave_lane(lane, step, due, name)
  local first, last = lane_range(lane)
  if redis.call('ZREM', HELD, lane_member(lane, step, due, name)) == 1
    and redis.call('ZLEXCOUNT', HELD, first, last) == 0 then
    redis.call('ZREM', LANES, lane)
  end
end

-- Take an entry that is due out of where it waits: its task is paused, or a limit holds it. Returns
-- id, message id and unique key of its label, if it has a label.
local function leave_wait(name, score, data)
  local step, _, task, start = read_record(data)
  if not step then
    return
  end
  local id, message_id, _, unique, behind = read_label(data, start)
  score = tonumber(score)
  if score >= PAUSED_OFFSET then
    local due = due_at(score)
    redis.call('ZREM', PAUSED_DUE, task_member(task, due, name))
    local lane = read_lane(data, behind)
    if lane then
      leave_lane(lane, step, due, name)
    end
  end
  redis.call('ZREM', TASKS, task_member(task, due_at(score), name))
  return id, message_id, unique, task
end

-- Give an entry another due.
local function move_entry(name, score, due, data)
  local _, _, _, task = leave_wait(name, score, data)
  if task then
    redis.call('ZADD', TASKS, 0, task_member(task, due, name))
  end
  redis.call('ZADD', DUE, due, name)
end

-- Take an entry out of the schedule. It keeps its unique key. Returns id, message id and unique key
-- of its label, if it has a label.
local function take_entry(name, score, data)
  redis.call('ZREM', DUE, name)
  redis.call('HDEL', ENTRIES, name)
  if string.find(name, '\0', 1, true) then
    redis.call('ZREM', DUPLICATE_IDS, name)
  end
  return leave_wait(name, score, data)
end

-- Take an entry out of the schedule, and release its unique key.
local function remove_entry(name, score, data)
  local id, message_id, unique = take_entry(name, score, data)
  if id then
    release_key(unique, id, message_id)
  end
end
