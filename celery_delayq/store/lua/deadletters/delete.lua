-- Delete dead letters.
--
-- KEYS     dead  dead_at  answer
-- ARGV     dead_letters…: for each dead letter: its id, when it died (ms)
-- Returns  a code for each: 'd' done, 'c' it is another dead letter by now, 'u' there is none
-- Repeat   the same answer, for a minute
-- Roles    worker
-- @include types
-- @include dead_letter
-- @include idempotent_reply

return answer_once(KEYS.answer, function()
  expect_types(FIRST.dead, 'hash', 'zset')
  -- Deleting frees memory, so a full server must accept the script: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.dead_at, '')
  local states = {}
  for i = FIRST.dead_letters, #ARGV, 2 do
    local state = dead_letter_state(KEYS.dead, KEYS.dead_at, ARGV[i], ARGV[i + 1])
    if state == 'd' then
      redis.call('HDEL', KEYS.dead, ARGV[i])
      redis.call('ZREM', KEYS.dead_at, ARGV[i])
    end
    states[#states + 1] = state
  end
  return table.concat(states)
end)
