-- Delete dead letters.
--
-- KEYS     dead  dead_at  answer
-- ARGV     dead_letters…: for each dead letter: its id, when it died (ms), the digest of the bytes
--            that the caller has read ('' to delete any bytes)
-- Returns  a code for each: 'd' done, 'c' it is another dead letter by now, or has another message,
--          'u' there is none
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
  for i = FIRST.dead_letters, #ARGV, 3 do
    local id, digest = ARGV[i], ARGV[i + 2]
    if digest == '' then
      digest = nil
    end
    local state = dead_letter_state(KEYS.dead, KEYS.dead_at, id, ARGV[i + 1], digest)
    if state == 'd' then
      redis.call('HDEL', KEYS.dead, id)
      redis.call('ZREM', KEYS.dead_at, id)
    end
    states[#states + 1] = state
  end
  return table.concat(states)
end)
