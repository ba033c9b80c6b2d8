-- Give scheduled entries back to stock workers: into their ready lists, as messages of stock's.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 wake  12 answer  13… ready lists
-- ARGV     1 queue  2… for each entry: its name, the score and the record that were read, the message
--          to push, which of KEYS is its ready list
-- Returns  a code for each: 'd' done, 'c' it is due at another time by now or another one, 'u' gone
-- Repeat   the same, for a minute
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include dispatch/next_due
-- @include wake
-- @include idempotent_reply

return answer_once(KEYS[12], function()
  expect_state()
  expect_all(13, 'list')
  -- Moving frees memory, so a full server must let it pass: see dispatch/promote.lua.
  redis.call('ZREM', KEYS[10], '')

  local codes, moved = {}, 0
  for i = 2, #ARGV, 5 do
    local name = ARGV[i]
    local data, score = redis.call('HGET', ENTRIES, name), redis.call('ZSCORE', DUE, name)
    local code = 'd'
    if not data or not score then
      code = 'u'
    elseif data ~= ARGV[i + 2] or tonumber(score) ~= tonumber(ARGV[i + 1]) then
      code = 'c'
    else
      redis.call('LPUSH', KEYS[tonumber(ARGV[i + 4])], ARGV[i + 3])
      wake(KEYS[11])
      remove_entry(name, score, data)
      moved = moved + 1
    end
    codes[#codes + 1] = code
  end
  if moved > 0 then
    look_on(KEYS[10], ARGV[1], DUE)
    add_total(TOTALS, 'promoted', moved)
  end
  return table.concat(codes)
end)
