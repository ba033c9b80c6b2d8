-- Keep dead letters as they were kept before, byte for byte.
--
-- KEYS     1 dead  2 dead_at  3 queues  4 answer
-- ARGV     1 queue  2 layout of the queue  3… for each dead letter: its id, when it died (ms), what was
--          stored
-- Returns  a code for each: 'd' done, 'k' it is there already
-- Repeat   the same answer, for a minute
-- @include types
-- @include idempotent_reply
-- @include dead_letter

return answer_once(KEYS[4], function()
  expect_types(1, 'hash', 'zset')
  redis.call('HSETNX', KEYS[3], ARGV[1], ARGV[2])
  local states = {}
  for i = 3, #ARGV, 3 do
    local id, died, dead_letter = dead_letter_name(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
    -- Where another one had its id when it was kept, it is found beside that.
    local beside = id .. '\0' .. redis.sha1hex(dead_letter)
    local there = redis.call('HEXISTS', KEYS[1], beside) == 1
    if there then
      id = beside
    elseif redis.call('HEXISTS', KEYS[1], id) == 1 then
      -- Read only one that may be the same: never more bytes than the call keeps.
      there = redis.call('HSTRLEN', KEYS[1], id) == #dead_letter
        and redis.call('HGET', KEYS[1], id) == dead_letter
      id = there and id or beside
    end
    if not there then
      redis.call('HSET', KEYS[1], id, dead_letter)
    end
    redis.call('ZADD', KEYS[2], died, id)
    states[#states + 1] = there and 'k' or 'd'
  end
  return table.concat(states)
end)
