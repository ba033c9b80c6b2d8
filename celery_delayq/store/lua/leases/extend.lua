-- Extend the lease of a process on its messages of one queue.
--
-- KEYS     leased  leases  lease_ends  clock
-- ARGV     queue  worker_id  lease_ms
-- Returns  number of messages of the queue that the process has leased
-- Repeat   extends the lease again
-- Roles    worker
-- @include clock
-- @include leases/lease

local count = redis.call('HLEN', KEYS.leased)
if count > 0 then
  -- A full server must accept the script: see dispatch/promote.lua.
  redis.call('ZREM', KEYS.lease_ends, '')
  local lease = tonumber(ARGV.lease_ms)
  extend_lease(KEYS.leases, KEYS.lease_ends, ARGV.queue, ARGV.worker_id,
    lease_now(KEYS.clock, lease / 3) + lease)
end
return count
