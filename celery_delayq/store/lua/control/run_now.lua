-- Make scheduled entries ready at once, to run next in their priority.
--
-- An entry of a paused queue or task stays scheduled, and gets the current time as its due. An entry
-- that has to wait for its limit is the next one of its lane; with a skip_after it is the last one,
-- since an earlier due may make it too late.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  answer  readers  moved  moved_before  wake  control  ready_lists…
-- ARGV     queue
--          most_names: most names to look at
--          start: where to start in the first id, see include/find.lua
--          wake_channel
--          list_count: how many ready lists
--          steps_and_entries…: their priority steps, then for each entry: id, the due that it must
--            have (ms), '' for any
-- Returns  a code for each id: 'd' done, 'w' it is ready already, 'r' it is leased, 'c' it
--          has another due, 'u' unknown; change_found explains an unfinished reply
-- Repeat   the same, for a minute
-- Roles    operator
-- @include clock
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include dispatch/next_due
-- @include pages/moves
-- @include idempotent_reply
-- @include find

return answer_once(KEYS.answer, function()
  local time_us = now_us()
  local moves = {KEYS.readers, KEYS.moved, KEYS.moved_before}
  local list_of = lists_by_step({select(FIRST.ready_lists, unpack(KEYS))},
    {select(FIRST.steps_and_entries, unpack(ARGV))})
  expect_state()
  -- Moving frees memory, so a full server must accept the script: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.next_due, '')
  begin_moves(moves, time_us)
  -- No entry of a paused queue or task is started.
  local queue_paused = redis.call('HEXISTS', KEYS.control, 'q' .. ARGV.queue) == 1

  local function is_paused(task)
    return queue_paused or redis.call('HEXISTS', KEYS.control, 't' .. task) == 1
  end

  local moved = 0

  -- The due of an entry that becomes ready.
  local function ready_due(data, start, priority)
    local now = to_ms(time_us)
    local _, _, skip, _, behind = read_label(data, start)
    local lane = skip == 0 and read_lane(data, behind)
    if not lane then
      return now
    end
    local _, last = lane_range(lane)
    local head = redis.call('ZRANGEBYLEX', HELD, '[' .. lane_member(lane, priority, 0, ''), last,
      'LIMIT', 0, 1)[1]
    return head and math.max(1, math.min(now, due_in_lane(head) - 1)) or now
  end

  local function run(name, score, data)
    local priority, _, task, start = read_record(data)
    if not priority or is_paused(task) then
      -- dispatch/promote.lua handles this entry.
      local due = to_ms(time_us)
      note_move(moves, name, score, task)
      move_entry(name, score, due, data)
      plan_look(KEYS.next_due, ARGV.queue, due, time_us, ARGV.wake_channel)
      return
    end
    redis.call('RPUSH', list_of[priority] or KEYS[FIRST.ready_lists], message_in(data, start))
    wake_consumers(KEYS.wake)
    moved = moved + 1
    local due = ready_due(data, start, priority)
    local id, message_id, unique = take_entry(name, score, data)
    if id then
      track_message(READY_INDEX, id, message_id, tracking_text(due, unique, task))
      release_key(unique, id, message_id)
    end
  end

  local codes = change_found(FIRST.steps_and_entries + ARGV.list_count, 2, ARGV.most_names,
    ARGV.start, run)
  plan_look_on_removal(KEYS.next_due, ARGV.queue, DUE)
  add_total(TOTALS, 'promoted', moved)
  return codes
end)
