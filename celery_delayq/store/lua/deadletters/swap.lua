-- Swap dead letters, each only if it is still as the caller has read it.
--
-- KEYS     dead  answer
-- ARGV     swaps…: for each dead letter: its id, the bytes that the caller has read, the bytes to
--            store
-- Returns  a code for each: 'd' done, 'c' it is another dead letter by now, 'u' there is none
-- Repeat   the same answer, for a minute
-- Roles    operator
-- @include types
-- @include idempotent_reply

return answer_once(KEYS.answer, function()
  expect_type(KEYS.dead, 'hash')
  local states = {}
  for i = FIRST.swaps, #ARGV, 3 do
    local id, before, state = ARGV[i], ARGV[i + 1], 'd'
    -- Reads a dead letter only if its length is the same: never more bytes than the call has.
    if redis.call('HEXISTS', KEYS.dead, id) == 0 then
      state = 'u'
    elseif redis.call('HSTRLEN', KEYS.dead, id) ~= #before
      or redis.call('HGET', KEYS.dead, id) ~= before then
      state = 'c'
    else
      redis.call('HSET', KEYS.dead, id, ARGV[i + 2])
    end
    states[#states + 1] = state
  end
  return table.concat(states)
end)
