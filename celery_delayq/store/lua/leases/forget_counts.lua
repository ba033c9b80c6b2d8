-- Forget counts of deliveries whose messages were not found, if nobody has counted since.
--
-- KEYS     1 deliveries
-- ARGV     1… for each message: its digest, its counts as they were
-- Returns  how many were forgotten
-- Repeat   0

local forgotten = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    forgotten = forgotten + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return forgotten
