-- Move scheduled entries to another due.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  answer  readers  moved  moved_before
-- ARGV     queue
--          most_names: most names to look at
--          start: where to start in the first id, see include/find.lua
--          wake_channel
--          new_dues…: for each: id, new due (ms, with '+' from now), the due that it must have
--            (ms), '' for any
-- Returns  a code for each id: 'd' done, 'w' it is ready already, 'r' it is leased, 'c' it
--          has another due, 'p' the new due has passed, 'u' unknown; change_found explains an
--          unfinished reply
-- Repeat   the same, for a minute
-- Roles    operator
-- @include clock
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include entry_store
-- @include dispatch/next_due
-- @include pages/moves
-- @include idempotent_reply
-- @include find

return answer_once(KEYS.answer, function()
  expect_state()
  local time_us = now_us()
  local moves = {KEYS.readers, KEYS.moved, KEYS.moved_before}
  -- Nothing is added, so a full server must accept the script: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.next_due, '')
  begin_moves(moves, time_us)

  local function move(name, score, data, i)
    local due = due_of_text(ARGV[i + 1], time_us)
    if due <= to_ms(time_us) then
      return 'p'
    end
    local _, _, task = read_record(data)
    note_move(moves, name, score, task)
    move_entry(name, score, due, data)
    plan_look(KEYS.next_due, ARGV.queue, due, time_us, ARGV.wake_channel)
  end

  return change_found(FIRST.new_dues, 3, ARGV.most_names, ARGV.start, move)
end)
