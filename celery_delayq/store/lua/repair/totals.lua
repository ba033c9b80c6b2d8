-- Compare the counters of a queue with the messages that are there, but for those that others have added
-- to its ready lists or taken from them. Repairing counts the difference as accepted or as taken.
--
-- KEYS     1 due  2 totals  3 quarantined  4 leases  5… ready lists and leased of each process
-- ARGV     1 '1' to repair  2 most messages of processes to look at  3 how many ready lists
--          4… worker ids, in the order of KEYS behind the ready lists
-- Returns  {0, looked at, {}, then {kind, found, repaired, 'counted <number>, there <number>'}};
--          {1, 0, {}} if another process has a lease, or there are too many messages
-- Repeat   finds what is left
-- @include types
-- @include totals
-- @include repair/report

expect_types(1, 'zset', 'hash', 'list', 'zset')
if redis.call('HEXISTS', KEYS[2], 'epoch') == 0 then
  return tell('0', 0)
end
local lists = tonumber(ARGV[3])
local known, leased, empty = 0, 0, 0
for i = 4, #ARGV do
  known = known + (redis.call('ZSCORE', KEYS[4], ARGV[i]) and 1 or 0)
  leased = leased + redis.call('HLEN', KEYS[1 + lists + i])
end
if redis.call('ZCARD', KEYS[4]) > known or leased > tonumber(ARGV[2]) then
  return tell('1', 0)
end
for i = 5 + lists, #KEYS do
  for _, field in ipairs(redis.call('HKEYS', KEYS[i])) do
    empty = empty + (redis.call('HSTRLEN', KEYS[i], field) == 0 and 1 or 0)
  end
end
local ready = redis.call('LLEN', KEYS[3])
for i = 5, 4 + lists do
  ready = ready + redis.call('LLEN', KEYS[i])
end

local total = {}
local counters = redis.call('HGETALL', KEYS[2])
for i = 1, #counters, 2 do
  total[counters[i]] = tonumber(counters[i + 1]) or 0
end
local function of(name)
  return total[name] or 0
end
local counted = of('accepted') + of('pushed') + of('replayed') + of('aside')
for name, number in pairs(total) do
  if string.sub(name, 1, 5) == 'dead:' then
    counted = counted - number
  end
end
for _, name in ipairs({'acked', 'cancelled', 'replaced', 'moved', 'purged', 'taken'}) do
  counted = counted - of(name)
end
local others = ready - of('pushed') - of('promoted') - of('ready')
local there = redis.call('ZCARD', KEYS[1]) + ready + leased - empty - others

if there ~= counted then
  local repair = ARGV[1] == '1'
  note('totals_differ', string.format('counted %d, there %d', counted, there), repair)
  if repair then
    add_total(KEYS[2], 'accepted', math.max(0, there - counted))
    add_total(KEYS[2], 'taken', math.max(0, counted - there))
    add_total(KEYS[2], 'empty', empty - of('empty'))
  end
end
return tell('0', 1)
