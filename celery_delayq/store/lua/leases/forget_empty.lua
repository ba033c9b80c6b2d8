-- Forget the leases of processes that hold nothing, whether they have ended or not.
--
-- KEYS     1 leases  2 lease_ends  3 request_numbers  4… leased of each process
-- ARGV     1 queue  2… worker ids, in the order of KEYS[4…]
-- Returns  how many leases were forgotten
-- Repeat   0
-- @include types

expect_type(KEYS[1], 'zset')
expect_type(KEYS[3], 'hash')
local forgotten = 0
for i = 4, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    forgotten = forgotten + redis.call('ZREM', KEYS[1], ARGV[i - 2])
    redis.call('HDEL', KEYS[3], ARGV[i - 2])
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return forgotten
