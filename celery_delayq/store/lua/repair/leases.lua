-- Look at the leases of some processes on a queue: what a process holds must end some day, and
-- someone must look then.
--
-- KEYS     1 leases  2 lease_ends  3 clock  4… leased of each process
-- ARGV     1 queue  2 '1' to repair  3 lease (ms), for a process that has none
--          4… worker ids, in the order of KEYS[4…]
-- Returns  {0, looked at, {}, then for each kind {kind, found, repaired, some worker_ids…}}
-- Repeat   finds what is left
-- @include clock
-- @include types
-- @include lease
-- @include repair/report

local queue, repair, lease = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
expect_type(KEYS[1], 'zset')
expect_all(4, 'hash')
let_repairs_pass(repair, KEYS[2])
local now = lease_now(KEYS[3], lease / 3)

for i = 4, #KEYS do
  local worker_id = ARGV[i]
  if redis.call('EXISTS', KEYS[i]) == 1 and not redis.call('ZSCORE', KEYS[1], worker_id) then
    note('unleased', worker_id, repair)
    if repair then
      hold_lease(KEYS[1], KEYS[2], queue, worker_id, now + lease)
    end
  end
end

-- An early look does no harm: leases/reclaim_expired.lua then says when the next one is to be.
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local look = redis.call('ZSCORE', KEYS[2], queue)
if first[2] and (not look or tonumber(look) > tonumber(first[2])) then
  note('unwatched', first[1], repair, 'ZADD', KEYS[2], first[2], queue)
end
return tell('0', #KEYS - 3)
