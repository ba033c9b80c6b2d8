-- Give scheduled entries back to stock workers: push them to the ready lists as stock messages.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  wake  answer  ready_lists…
-- ARGV     queue
--          given_back…: for each entry: its name, the score and the record that the caller has
--            read, the message to push, place of its ready list in KEYS
-- Returns  a code for each: 'd' done, 'c' the entry has changed, 'u' gone
-- Repeat   the same, for a minute
-- Roles    operator
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include dispatch/next_due
-- @include wake
-- @include idempotent_reply

return answer_once(KEYS.answer, function()
  expect_state()
  expect_all(FIRST.ready_lists, 'list')
  -- Moving frees memory, so a full server must accept the script: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.next_due, '')

  local codes, moved = {}, 0
  for i = FIRST.given_back, #ARGV, 5 do
    local name = ARGV[i]
    local data, score = redis.call('HGET', ENTRIES, name), redis.call('ZSCORE', DUE, name)
    local code = 'd'
    if not data or not score then
      code = 'u'
    elseif data ~= ARGV[i + 2] or tonumber(score) ~= tonumber(ARGV[i + 1]) then
      code = 'c'
    else
      redis.call('LPUSH', KEYS[tonumber(ARGV[i + 4])], ARGV[i + 3])
      wake_consumers(KEYS.wake)
      remove_entry(name, score, data)
      moved = moved + 1
    end
    codes[#codes + 1] = code
  end
  if moved > 0 then
    plan_look_on_removal(KEYS.next_due, ARGV.queue, DUE)
    add_total(TOTALS, 'promoted', moved)
  end
  return table.concat(codes)
end)
