-- Move scheduled entries to another due.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 answer  12 readers  13 moved  14 moved_before
-- ARGV     1 queue  2 most names to look at  3 where to start in the first id, see include/find.lua
--          4 wake channel  5… for each: id, due (ms, '+' before it when it counts from now), only if
--          it is due then (ms), '' for any
-- Returns  a code for each id: 'd' done, 'w' it is ready already, 'r' a process holds it, 'c' it
--          is due at another time, 'p' the new due has passed, 'u' unknown; change_found explains
--          an unfinished reply
-- Repeat   the same, for a minute
-- @include clock
-- @include types
-- @include room
-- @include record
-- @include tracking
-- @include entry_store
-- @include dispatch/next_due
-- @include pages/moves
-- @include idempotent_reply
-- @include find

return answer_once(KEYS[11], function()
  expect_state()
  local clock = now_us()
  local moves = {KEYS[12], KEYS[13], KEYS[14]}
  -- Nothing is added, so it must pass on a full server: see dispatch/promote.lua.
  redis.call('ZREM', KEYS[10], '')
  begin_moves(moves, clock)

  local function move(name, score, data, i)
    local due = due_of(ARGV[i + 1], clock)
    if due <= to_ms(clock) then
      return 'p'
    end
    local _, _, task = read_record(data)
    note_move(moves, name, score, task)
    move_entry(name, score, due, task)
    look_at(KEYS[10], ARGV[1], due, clock, ARGV[4])
  end

  return change_found(5, 3, ARGV[2], ARGV[3], move)
end)
