-- Compare the counters of a queue with its messages. A repair counts the difference as accepted or
-- taken.
--
-- Messages that other programs have added to the ready lists or taken from them do not count.
--
-- KEYS     due  totals  quarantined  leases
--          ready_lists_and_leased…: the ready lists, then leased of each process
-- ARGV     repair: '1' to repair
--          most_leased
--          list_count: how many ready lists
--          worker_ids…: in the order of leased in KEYS
-- Returns  {0, looked at, {}, then {kind, found, repaired, 'counted <number>, there <number>'}};
--          {1, 0, {}} if another process has a lease, or more than most_leased are leased
-- Repeat   finds what is left
-- Roles    operator
-- @include clock
-- @include types
-- @include totals
-- @include repair/report

expect_types(FIRST.due, 'zset', 'hash', 'list', 'zset')
if redis.call('HEXISTS', KEYS.totals, 'epoch') == 0 then
  return report('0', 0)
end
local lists = tonumber(ARGV.list_count)
local known, leased, empty = 0, 0, 0
for i = FIRST.worker_ids, #ARGV do
  known = known + (redis.call('ZSCORE', KEYS.leases, ARGV[i]) and 1 or 0)
  local place = i + (FIRST.ready_lists_and_leased - FIRST.worker_ids) + lists
  leased = leased + redis.call('HLEN', KEYS[place])
end
if redis.call('ZCARD', KEYS.leases) > known or leased > tonumber(ARGV.most_leased) then
  return report('1', 0)
end
for i = FIRST.ready_lists_and_leased + lists, #KEYS do
  for _, field in ipairs(redis.call('HKEYS', KEYS[i])) do
    empty = empty + (redis.call('HSTRLEN', KEYS[i], field) == 0 and 1 or 0)
  end
end
local ready = redis.call('LLEN', KEYS.quarantined)
for i = FIRST.ready_lists_and_leased, FIRST.ready_lists_and_leased + lists - 1 do
  ready = ready + redis.call('LLEN', KEYS[i])
end

local total = {}
local counters = redis.call('HGETALL', KEYS.totals)
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
local there = redis.call('ZCARD', KEYS.due) + ready + leased - empty - others

if there ~= counted then
  local repair = ARGV.repair == '1'
  note_drift('totals_differ', string.format('counted %d, there %d', counted, there), repair)
  if repair then
    add_total(KEYS.totals, 'accepted', math.max(0, there - counted))
    add_total(KEYS.totals, 'taken', math.max(0, counted - there))
    add_total(KEYS.totals, 'empty', empty - of('empty'))
  end
end
return report('0', 1)
