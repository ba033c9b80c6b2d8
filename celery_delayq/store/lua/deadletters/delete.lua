-- Forget dead letters.
--
-- KEYS     1 dead  2 dead_at  3 answer
-- ARGV     1… for each dead letter: its id, when it died (ms)
-- Returns  a code for each: 'd' done, 'c' it is another dead letter by now, 'u' there is none
-- Repeat   the same answer, for a minute
-- @include types
-- @include dead_letter
-- @include idempotent_reply

return answer_once(KEYS[3], function()
  expect_types(1, 'hash', 'zset')
  -- Forgetting frees memory, so a full server must let it pass: see dispatch/promote.lua.
  redis.call('ZREM', KEYS[2], '')
  local states = {}
  for i = 1, #ARGV, 2 do
    local state = dead_letter_state(KEYS[1], KEYS[2], ARGV[i], ARGV[i + 1])
    if state == 'd' then
      redis.call('HDEL', KEYS[1], ARGV[i])
      redis.call('ZREM', KEYS[2], ARGV[i])
    end
    states[#states + 1] = state
  end
  return table.concat(states)
end)
