-- Forget counts of deliveries whose messages were not found, if nobody has counted since.
--
-- KEYS     deliveries
-- ARGV     counts…: for each message: its digest, its counts as they were
-- Returns  how many were forgotten
-- Repeat   0
-- Roles    operator

local forgotten = 0
for i = FIRST.counts, #ARGV, 2 do
  if redis.call('HGET', KEYS.deliveries, ARGV[i]) == ARGV[i + 1] then
    forgotten = forgotten + redis.call('HDEL', KEYS.deliveries, ARGV[i])
  end
end
return forgotten
