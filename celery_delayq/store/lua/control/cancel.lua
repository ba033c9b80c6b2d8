-- Cancel scheduled and ready messages.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  answer
--          ready_lists…: and quarantined
-- ARGV     queue
--          most_names: most names to look at
--          start: where to start in the first id, see include/find.lua
--          ready_action: 'cancel' ready messages too, 'free' their unique keys, since workers
--            refuse them, or 'leave' them
--          messages…: for each: id, the due that it must have (ms), '' for any
-- Returns  a code for each id: 'd' done, it was scheduled, 'm' done, it is ready and has a mark, 'w'
--          it is ready and stays, 'r' it is leased, 'c' it has another due, 'u' unknown; change_found
--          explains an unfinished reply
-- Repeat   the same, for a minute
-- Roles    worker
-- @include clock
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include totals
-- @include dispatch/next_due
-- @include idempotent_reply
-- @include find

local function cancel_ready(name, value, wanted)
  local _, message_id, due, unique, task, more = read_tracked(value)
  if wanted and tonumber(due) ~= wanted then
    return 'c'
  end
  if ARGV.ready_action == 'cancel' then
    redis.call('HSET', READY_INDEX, name, '!' .. value)
  elseif unique ~= '-' then
    -- A worker will refuse the message. Until then it is ready, without its unique key.
    local rest = tracking_text(due, '-', task) .. (more ~= '' and ' ' .. more or '')
    redis.call('HSET', READY_INDEX, name, message_id .. ' ' .. rest)
  end
  release_key(unique, string.match(name, '^[^%z]*'), message_id)
  return ARGV.ready_action == 'cancel' and 'm' or 'w'
end

local cancelled = 0

-- Entries that are removed together: one command for many takes a third of the time.
local names, members, duplicates = {}, {}, {}

local function cancel_scheduled(name, score, data)
  cancelled = cancelled + 1
  local step, _, task, start = read_record(data)
  local unique = step and read_unique(data, start)
  if not step or tonumber(score) >= PAUSED_OFFSET or (unique or '-') ~= '-' then
    remove_entry(name, score, data)
    return
  end
  removed[name] = true
  if string.find(name, '\0', 1, true) then
    duplicates[#duplicates + 1] = name
  end
  names[#names + 1] = name
  members[#members + 1] = task_member(task, tonumber(score), name)
end

local function remove_together()
  if #names > 0 then
    redis.call('ZREM', DUE, unpack(names))
    redis.call('HDEL', ENTRIES, unpack(names))
    redis.call('ZREM', TASKS, unpack(members))
  end
  if #duplicates > 0 then
    redis.call('ZREM', DUPLICATE_IDS, unpack(duplicates))
  end
end

return answer_once(KEYS.answer, function()
  expect_state()
  -- A full server must accept the script: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.next_due, '')
  if redis.call('EXISTS', select(FIRST.ready_lists, unpack(KEYS))) == 0 then
    forget_waiting()
  end
  local codes = change_found(
    FIRST.messages, 2, ARGV.most_names, ARGV.start, cancel_scheduled, ARGV.ready_action ~= 'leave'
      and cancel_ready)
  remove_together()
  plan_look_on_removal(KEYS.next_due, ARGV.queue, DUE)
  -- A ready message is counted when a process drops it.
  add_total(TOTALS, 'cancelled', cancelled)
  return codes
end)
