-- Forget the delivery counts of messages that were not found, if the counts have not changed since.
--
-- KEYS     deliveries
-- ARGV     counts…: for each message: its digest, the counts that the caller has read
-- Returns  number of forgotten messages
-- Repeat   0
-- Roles    operator

local forgotten = 0
for i = FIRST.counts, #ARGV, 2 do
  if redis.call('HGET', KEYS.deliveries, ARGV[i]) == ARGV[i + 1] then
    forgotten = forgotten + redis.call('HDEL', KEYS.deliveries, ARGV[i])
  end
end
return forgotten
