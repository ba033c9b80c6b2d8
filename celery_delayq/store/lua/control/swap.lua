-- Swap records of scheduled entries, each only if it is still as the caller has read it.
--
-- Name, due and message id of an entry stay. A paused or held entry whose task, priority step or
-- lane changes is due again: dispatch/promote.lua decides where it waits now.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  answer
-- ARGV     queue  wake_channel
--          swaps…: for each entry: its name, the record that the caller has read, the record to
--            store, the due that the entry must have (ms), '' for any, the policy if its new
--            unique key is taken (see include/unique_policy.lua)
-- Returns  a code for each: 'd' done, 'c' it has another record or due, 'k' another message has its
--          new unique key, 'w' it is ready already, 'r' it is leased, 'u' unknown, 'x' the record
--          to store is that of another message
-- Repeat   the same, for a minute
-- Roles    operator
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include unique_policy
-- @include dispatch/next_due
-- @include idempotent_reply

-- The code of an entry that has left the schedule.
local function state_of(name, data)
  local _, message_id = read_record(data)
  local id = string.match(name, '^[^%z]*')
  for _, place in ipairs({{'w', READY_INDEX}, {'r', LEASED_INDEX}}) do
    local mark, found = read_tracked(select(2, find_tracked(place[2], id, message_id)))
    if found and mark == '' then
      return place[1]
    end
  end
  return 'u'
end

-- The key in a unique key with its scope, nil for none.
local function key_in(unique)
  return unique and unique ~= '-' and string.sub(unique, 2) or nil
end

-- Whether another message has a unique key, maybe under another name of its task.
local function is_taken(key, policy, id, message_id)
  for _, each in ipairs(same_keys(key, policy)) do
    local owner, owner_message_id = read_owner(each)
    local is_own = owner == id and owner_message_id == message_id
    if owner and not is_own and find_owner(owner, owner_message_id, each) then
      return true
    end
  end
  return false
end

local function swap(name, score, before, after, policy, time_us)
  local old_step, message_id, old_task, old_start = read_record(before)
  local step, its_message_id, task, start = read_record(after)
  local id, label_message_id, _, unique, behind = read_label(after, start)
  if not id or id ~= string.match(name, '^[^%z]*') or its_message_id ~= message_id
    or label_message_id ~= message_id then
    return 'x'
  end
  local _, _, _, old_unique, old_behind = read_label(before, old_start)
  local key, old_key = key_in(unique), key_in(old_unique)
  if key and key ~= old_key and is_taken(key, policy, id, message_id) then
    return 'k'
  end

  -- This comes before any other write: a full server refuses it.
  redis.call('HSET', ENTRIES, name, after)
  if key ~= old_key then
    local since
    if old_key then
      local owner, owner_message_id, owned_since = read_owner(old_key)
      since = owner == id and owner_message_id == message_id and owned_since or nil
      release_key(old_unique, id, message_id)
    end
    if key then
      redis.call('HSET', UNIQUE, key, owner_text(since, id, message_id))
    end
  end
  local waits = tonumber(score) >= PAUSED_OFFSET
  local lane, old_lane = read_lane(after, behind), read_lane(before, old_behind)
  if task ~= old_task or (waits and (step ~= old_step or lane ~= old_lane)) then
    local due = due_at(score)
    leave_wait(name, score, before)
    redis.call('ZADD', TASKS, 0, task_member(task, due, name))
    if waits then
      redis.call('ZADD', DUE, due, name)
      plan_look(KEYS.next_due, ARGV.queue, due, time_us, ARGV.wake_channel)
    end
  end
  return 'd'
end

return answer_once(KEYS.answer, function()
  expect_state()
  expect_type(KEYS.next_due, 'zset')
  local time_us = now_us()
  local codes = {}
  for i = FIRST.swaps, #ARGV, 5 do
    local name, before, wanted = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 3])
    local data, score = redis.call('HGET', ENTRIES, name), redis.call('ZSCORE', DUE, name)
    local code
    if not data or not score then
      code = state_of(name, before)
    elseif data ~= before or (wanted and due_at(score) ~= wanted) then
      code = 'c'
    else
      code = swap(name, score, before, ARGV[i + 2], ARGV[i + 4], time_us)
    end
    codes[#codes + 1] = code
  end
  return table.concat(codes)
end)
