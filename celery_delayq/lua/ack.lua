-- Forget messages that are done.
--
-- KEYS     1 leased  2 deliveries
-- ARGV     1… fields of the messages
-- Returns  how many were held
-- Repeat   0
-- @include lease

if redis.call('EXISTS', KEYS[2]) == 1 then
  for _, held in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV))) do
    local _, _, start = read_leased(held)
    if start then
      redis.call('HDEL', KEYS[2], redis.sha1hex(string.sub(held, start)))
    end
  end
end
return redis.call('HDEL', KEYS[1], unpack(ARGV))
