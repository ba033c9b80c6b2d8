-- Make scheduled entries ready at once, to run next in their priority.
--
-- What belongs to a paused task stays, and is due at once when the task goes on.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 answer  12 readers  13 moved
--          14 moved_before  15 wake  16 control  17… ready lists
-- ARGV     1 queue  2 most names to look at  3 where to start in the first id, see include/find.lua
--          4 wake channel  5 how many ready lists  6… their priority steps, then for each entry: id,
--          only if it is due then (ms), '' for any
-- Returns  a code for each id: 'd' done, 'w' it is ready already, 'r' a process holds it, 'c' it
--          is due at another time, 'u' unknown; change_found explains an unfinished reply
-- Repeat   the same, for a minute
-- @include clock
-- @include types
-- @include room
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include dispatch/next_due
-- @include pages/moves
-- @include idempotent_reply
-- @include find

return answer_once(KEYS[11], function()
  local clock = now_us()
  local moves = {KEYS[12], KEYS[13], KEYS[14]}
  local list_of = lists_by_step({select(17, unpack(KEYS))}, {select(6, unpack(ARGV))})
  expect_state()
  -- Moving frees memory, so a full server must let it pass: see dispatch/promote.lua.
  redis.call('ZREM', KEYS[10], '')
  begin_moves(moves, clock)
  -- Nothing of a paused queue or task is started.
  local queue_paused = redis.call('HEXISTS', KEYS[16], 'q' .. ARGV[1]) == 1

  local function is_paused(task)
    return queue_paused or redis.call('HEXISTS', KEYS[16], 't' .. task) == 1
  end

  local moved = 0

  local function run(name, score, data)
    local priority, _, task, start = read_record(data)
    if not priority or is_paused(task) then
      -- dispatch/promote.lua does with it what is to be done.
      local due = to_ms(clock)
      note_move(moves, name, score, task)
      move_entry(name, score, due, task)
      look_at(KEYS[10], ARGV[1], due, clock, ARGV[4])
      return
    end
    redis.call('RPUSH', list_of[priority] or KEYS[17], message_in(data, start))
    wake(KEYS[15])
    moved = moved + 1
    local id, message_id, unique = take_entry(name, score, data)
    if id then
      track(READY_INDEX, id, message_id, tracking(to_ms(clock), unique, task))
      release_key(unique, id, message_id)
    end
  end

  local codes = change_found(6 + ARGV[5], 2, ARGV[2], ARGV[3], run)
  look_on(KEYS[10], ARGV[1], DUE)
  add_total(TOTALS, 'promoted', moved)
  return codes
end)
