-- Restore exported dead letters, byte for byte.
--
-- KEYS     dead  dead_at  queues  answer
-- ARGV     queue  layout
--          dead_letters…: for each dead letter: its id, when it died (ms), its stored bytes
-- Returns  a code for each: 'd' done, 'k' it is there already
-- Repeat   the same answer, for a minute
-- Roles    operator
-- @include types
-- @include idempotent_reply
-- @include dead_letter

return answer_once(KEYS.answer, function()
  expect_types(FIRST.dead, 'hash', 'zset')
  redis.call('HSETNX', KEYS.queues, ARGV.queue, ARGV.layout)
  local states = {}
  for i = FIRST.dead_letters, #ARGV, 3 do
    local id, died, dead_letter = dead_letter_name(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
    -- If another dead letter had its id, an earlier call has stored it under a second name.
    local beside = id .. '\0' .. redis.sha1hex(dead_letter)
    local there = redis.call('HEXISTS', KEYS.dead, beside) == 1
    if there then
      id = beside
    elseif redis.call('HEXISTS', KEYS.dead, id) == 1 then
      -- Reads a dead letter only if its length is the same: never more bytes than the call stores.
      there = redis.call('HSTRLEN', KEYS.dead, id) == #dead_letter
        and redis.call('HGET', KEYS.dead, id) == dead_letter
      id = there and id or beside
    end
    if not there then
      redis.call('HSET', KEYS.dead, id, dead_letter)
    end
    redis.call('ZADD', KEYS.dead_at, died, id)
    states[#states + 1] = there and 'k' or 'd'
  end
  return table.concat(states)
end)
