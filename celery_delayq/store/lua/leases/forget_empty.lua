-- Forget the leases of processes without messages, even leases that have not ended.
--
-- KEYS     leases  lease_ends  request_numbers
--          leased_of_workers…: leased of each process
-- ARGV     queue
--          worker_ids…: in the order of leased_of_workers
-- Returns  number of forgotten leases
-- Repeat   0
-- Roles    operator
-- @include types

expect_type(KEYS.leases, 'zset')
expect_type(KEYS.request_numbers, 'hash')
local forgotten = 0
for i = FIRST.leased_of_workers, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    local worker_id = ARGV[i + (FIRST.worker_ids - FIRST.leased_of_workers)]
    forgotten = forgotten + redis.call('ZREM', KEYS.leases, worker_id)
    redis.call('HDEL', KEYS.request_numbers, worker_id)
  end
end
if redis.call('EXISTS', KEYS.leases) == 0 then
  redis.call('ZREM', KEYS.lease_ends, ARGV.queue)
end
return forgotten
