-- Reclaim the messages of a process with an expired lease, at most a batch and about 1 MB of them.
--
-- A message that was held too often when its process ended is taken for the cause, and is
-- delivered alone from then on. If that ends its process too, it is dead.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 leased  11 leases  12 lease_ends  13 clock  14 wake
--          15 deliveries  16 quarantined  17 dead  18 dead_at  19 request_numbers  20… ready lists
-- ARGV     1 queue  2 worker id  3 most messages  4 most deliveries, 0 for no limit
--          5 longest time since the last look at lease time (ms)  6… the priority steps of
--          KEYS[20…]
-- Returns  {'1' when there is more to take back in this queue, requeued, quarantined, dead_lettered}
-- Repeat   goes on with what is left
-- @include clock
-- @include types
-- @include room
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include dead_letter
-- @include lease

-- The last delivered message goes back first, so that all run in the order of their delivery. The
-- script sorts so many; if a process held more, their order is not kept.
local MOST_NAMES = 500

local list_of = lists_by_step({select(20, unpack(KEYS))}, {select(6, unpack(ARGV))})
expect_state()
expect_types(15, 'hash', 'list', 'hash', 'zset', 'hash')
-- Moving frees memory, so a full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[12], '')

local most = tonumber(ARGV[4])
local moved, quarantined, dead_lettered, corrupt, empty = 0, 0, 0, 0, 0

local function take_back(held)
  local step, mark, start = read_leased(held)
  if held == '' then
    empty = empty + 1
    return
  end
  if not step then
    add_dead_letter(KEYS[17], KEYS[18], redis.sha1hex(held), to_ms(now_us()), 0, 'unreadable', held)
    corrupt = corrupt + 1
    return
  end
  local message = message_in(held, start)
  local fate = count_death(message, mark, most, ARGV[2], KEYS[15], KEYS[17], KEYS[18])
  if fate == 'dead' then
    dead_lettered = dead_lettered + 1
  elseif fate == 'quarantined' then
    redis.call('LPUSH', KEYS[16], step .. '\n' .. message)
    quarantined = quarantined + 1
  else
    redis.call('RPUSH', list_of[step] or KEYS[20], message)
    moved = moved + 1
  end
end

local ends = redis.call('ZSCORE', KEYS[11], ARGV[2])
if ends and tonumber(ends) <= lease_now(KEYS[13], ARGV[5]) then
  local order = {}
  for _, field in ipairs(redis.call('HRANDFIELD', KEYS[10], MOST_NAMES)) do
    local request_number, place = string.match(field, '^(%d+):(%d+)$')
    order[#order + 1] = {tonumber(request_number or 0), tonumber(place or 0), field}
  end
  -- The first to run is pushed last.
  table.sort(order, function(a, b)
    return a[1] > b[1] or a[1] == b[1] and a[2] > b[2]
  end)
  for i = 1, math.min(#order, tonumber(ARGV[3])) do
    local field = order[i][3]
    local held = redis.call('HGET', KEYS[10], field)
    take_room(#held)
    take_back(held)
    redis.call('HDEL', KEYS[10], field)
    if room <= 0 then
      break
    end
  end
  if redis.call('EXISTS', KEYS[10]) == 0 then
    redis.call('ZREM', KEYS[11], ARGV[2])
    redis.call('HDEL', KEYS[19], ARGV[2])
  end
  if moved + quarantined > 0 then
    wake(KEYS[14])
  end
  add_total(TOTALS, 'ready', moved + quarantined)
  add_total(TOTALS, 'redelivered', moved + quarantined)
  add_total(TOTALS, 'dead:crashed', dead_lettered)
  add_total(TOTALS, 'dead:corrupt', corrupt)
  add_total(TOTALS, 'empty', -empty)
end
local more = '0'
local first = redis.call('ZRANGE', KEYS[11], 0, 0, 'WITHSCORES')
if first[2] then
  redis.call('ZADD', KEYS[12], first[2], ARGV[1])
  more = tonumber(first[2]) <= lease_now(KEYS[13], ARGV[5]) and '1' or '0'
else
  redis.call('ZREM', KEYS[12], ARGV[1])
end
return {more, moved, quarantined, dead_lettered + corrupt}
