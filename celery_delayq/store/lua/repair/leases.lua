-- Look at the leases of some processes on a queue: each must have an end, and a look must be
-- planned for that time.
--
-- KEYS     leases  lease_ends  clock
--          leased_of_workers…: leased of each process
-- ARGV     queue
--          repair: '1' to repair
--          lease_ms: for a process that has no lease
--          worker_ids…: in the order of leased_of_workers
-- Returns  {0, looked at, {}, then for each kind {kind, found, repaired, some worker_ids…}}
-- Repeat   finds what is left
-- Roles    operator
-- @include clock
-- @include types
-- @include leases/lease
-- @include repair/report

local queue, repair, lease = ARGV.queue, ARGV.repair == '1', tonumber(ARGV.lease_ms)
expect_type(KEYS.leases, 'zset')
expect_all(FIRST.leased_of_workers, 'hash')
let_repairs_pass(repair, KEYS.lease_ends)
local now = lease_now(KEYS.clock, lease / 3)

for i = FIRST.leased_of_workers, #KEYS do
  local worker_id = ARGV[i + (FIRST.worker_ids - FIRST.leased_of_workers)]
  if redis.call('EXISTS', KEYS[i]) == 1 and not redis.call('ZSCORE', KEYS.leases, worker_id) then
    note_drift('unleased', worker_id, repair)
    if repair then
      extend_lease(KEYS.leases, KEYS.lease_ends, queue, worker_id, now + lease)
    end
  end
end

-- An early look does no harm: leases/reclaim_expired.lua then plans the next one.
local first = redis.call('ZRANGE', KEYS.leases, 0, 0, 'WITHSCORES')
local look = redis.call('ZSCORE', KEYS.lease_ends, queue)
if first[2] and (not look or tonumber(look) > tonumber(first[2])) then
  note_drift('unwatched', first[1], repair, 'ZADD', KEYS.lease_ends, first[2], queue)
end
return report('0', #KEYS - FIRST.leased_of_workers + 1)
