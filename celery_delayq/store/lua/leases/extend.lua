-- Extend the lease of a process on what it holds of one queue.
--
-- KEYS     1 leased  2 leases  3 lease_ends  4 clock
-- ARGV     1 queue  2 worker id  3 lease (ms)
-- Returns  how many messages it holds
-- Repeat   extends it again
-- @include clock
-- @include lease

local count = redis.call('HLEN', KEYS[1])
if count > 0 then
  -- A full server must let it pass: see dispatch/promote.lua.
  redis.call('ZREM', KEYS[3], '')
  local lease = tonumber(ARGV[3])
  hold_lease(KEYS[2], KEYS[3], ARGV[1], ARGV[2], lease_now(KEYS[4], lease / 3) + lease)
end
return count
