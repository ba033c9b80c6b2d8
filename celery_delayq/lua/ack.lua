-- Forget messages that are done.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running  9 leased
--          10 deliveries
-- ARGV     1… fields of the messages
-- Returns  how many were held
-- Repeat   0
-- @include types
-- @include record
-- @include label
-- @include state
-- @include lease

local counted = redis.call('EXISTS', KEYS[10]) == 1
if counted or redis.call('EXISTS', RUNNING) == 1 then
  expect_state()
  for _, held in ipairs(redis.call('HMGET', KEYS[9], unpack(ARGV))) do
    local _, _, start = read_leased(held)
    if start then
      if counted then
        redis.call('HDEL', KEYS[10], redis.sha1hex(string.sub(held, start)))
      end
      forget_tracked(RUNNING, held, start)
    end
  end
end
return redis.call('HDEL', KEYS[9], unpack(ARGV))
