-- Look at the leases of some processes on a queue: what a process holds must end some day, and
-- someone must look then.
--
-- KEYS     1 leases  2 reaping  3 clock  4… what each process holds
-- ARGV     1 queue  2 '1' to mend  3 lease (ms), for a process that has none  4 for how long (ms)
--          a lease on nothing must have been over to be told; reap.lua removes it by then
--          5… incarnations, in the order of KEYS[4…]
-- Returns  {0, looked at, then for each kind {kind, found, mended, some incarnations…}}
-- Repeat   finds what is left
-- @include clock
-- @include types
-- @include lease
-- @include mend

local queue, mend = ARGV[1], ARGV[2] == '1'
expect_type(KEYS[1], 'zset')
for i = 4, #KEYS do
  expect_type(KEYS[i], 'hash')
end
-- What a process holds must come back, so a full server must let it pass: see promote.lua.
if mend then
  redis.call('ZREM', KEYS[2], '')
end
local over = lease_now(KEYS[3]) - tonumber(ARGV[4])
for i = 4, #KEYS do
  local incarnation = ARGV[i + 1]
  local ends = redis.call('ZSCORE', KEYS[1], incarnation)
  local holds = redis.call('EXISTS', KEYS[i]) == 1
  if holds and not ends then
    note('unleased', incarnation, mend)
    if mend then
      hold_lease(KEYS[1], KEYS[2], KEYS[3], queue, incarnation, ARGV[3])
    end
  elseif ends and not holds and tonumber(ends) <= over then
    note('empty_lease', incarnation, mend)
    if mend then
      redis.call('ZREM', KEYS[1], incarnation)
    end
  end
end

-- An early look does no harm: reap.lua then says when the next one is to be.
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local look = redis.call('ZSCORE', KEYS[2], queue)
if first[2] and (not look or tonumber(look) > tonumber(first[2])) then
  note('unwatched', first[1], mend)
  if mend then
    redis.call('ZADD', KEYS[2], first[2], queue)
  end
elseif look and not first[2] then
  note('idle_reaping', queue, mend)
  if mend then
    redis.call('ZREM', KEYS[2], queue)
  end
end
return tell('0', #KEYS - 3)
