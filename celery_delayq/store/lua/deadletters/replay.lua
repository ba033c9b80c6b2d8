-- Make entries of dead letters again: in one step they are scheduled, or ready, and dead no more.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 queues  12 wake  13 dead  14 dead_at
--          15 answer  16… ready lists, and all other lists of what is ready; all but dead and
--          dead_at are of the queue to which they go
-- ARGV     1 queue  2 layout of the queue  3 wake channel  4… for each dead letter: its id, when it died
--          (ms), the id of its task, due (ms, '+' before it when it counts from now), which of KEYS
--          is its ready list, record, what to do when its unique key is taken, '' without one
-- Returns  a code for each: 'd' done, 'k' another has its unique key, 'c' it is another dead letter by
--          now, 'u' there is none
-- Repeat   the same answer, for a minute
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include entry_store
-- @include unique_policy
-- @include dispatch/next_due
-- @include add_batch
-- @include dead_letter
-- @include idempotent_reply

return answer_once(KEYS[15], function()
  local clock = now_us()
  local now = to_ms(clock)
  expect_types(13, 'hash', 'zset')
  begin_puts(clock, 0, KEYS[12], 16)
  -- One takes the place of the other, so a full server must let it pass: see dispatch/promote.lua.
  redis.call('ZREM', KEYS[14], '')

  local states = {}
  for i = 4, #ARGV, 7 do
    local id = ARGV[i]
    local state = dead_letter_state(KEYS[13], KEYS[14], id, ARGV[i + 1])
    if state == 'd' then
      local due, list = due_of(ARGV[i + 3], clock), KEYS[tonumber(ARGV[i + 4])]
      local data, policy = ARGV[i + 5], ARGV[i + 6]
      if due <= now and policy == '' then
        -- As a new message it cannot be there already, so there is nothing to look for.
        local _, _, task, start = read_record(data)
        put_ready(list, KEYS[12], due, now, data, task, start)
        putting.ready = putting.ready + 1
      elseif put(ARGV[i + 2], due, list, data, policy) == 'E' then
        state = 'k'
      end
    end
    if state == 'd' then
      -- Listed before it is forgotten: nothing is ever nowhere.
      list_entries()
      redis.call('HDEL', KEYS[13], id)
      redis.call('ZREM', KEYS[14], id)
    end
    states[#states + 1] = state
  end
  end_puts(KEYS[10], KEYS[11], ARGV[1], ARGV[2], ARGV[3], 'replayed')
  return table.concat(states)
end)
