-- Put messages that a process holds back into their ready lists, about 1 MB of them.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 leased  11 wake  12 deliveries  13 dead  14 dead_at
--          15 quarantined  16… ready lists
-- ARGV     1 'first' to run next, 'last' to run after all that is ready  2 what to count:
--          'nothing', 'requeued', 'crashed' or, where the process ends by an error of which nobody
--          knows the cause, 'died'  3 most crashes or deaths, 0 for no limit  4 details for the
--          dead letter of one that crashed too often  5 worker id  6 how many ready lists  7… their
--          priority steps, then the fields of the messages in the order in which they were leased
-- Returns  {requeued, dead-lettered, how many of the fields are done: 'last' from the first on, else from
--          the last one}
-- Repeat   goes on with what is left, as with the others; {0, 0, all} when nothing is
-- @include clock
-- @include types
-- @include room
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include dead_letter
-- @include lease

local most, lists = tonumber(ARGV[3]), tonumber(ARGV[6])
local list_of = lists_by_step({select(16, unpack(KEYS))}, {select(7, unpack(ARGV))})
expect_state()
expect_types(12, 'hash', 'hash', 'zset', 'list')
-- Moving frees memory, so a full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[14], '')

local moved, dead_lettered, looked, corrupt, empty = 0, 0, 0, 0, 0
local push = ARGV[1] == 'last' and 'LPUSH' or 'RPUSH'
local from, to, by = #ARGV, 7 + lists, -1
if ARGV[1] == 'last' then
  from, to, by = to, from, 1
end

-- Whether a message has crashed too often, and is a dead letter by now.
local function count(message)
  if ARGV[2] == 'nothing' then
    return false
  end
  local digest = redis.sha1hex(message)
  local reclaimed, crashed, requeued = read_deliveries(redis.call('HGET', KEYS[12], digest))
  if ARGV[2] == 'crashed' then
    crashed = crashed + 1
  else
    requeued = requeued + 1
  end
  if ARGV[2] == 'crashed' and most > 0 and crashed > most then
    redis.call('HDEL', KEYS[12], digest)
    forget_tracked(LEASED_INDEX, message)
    add_dead_letter(KEYS[13], KEYS[14], read_label(message) or digest, to_ms(now_us()), 0,
      string.format('killed its process %d times', crashed), message, ARGV[4])
    return true
  end
  write_deliveries(KEYS[12], digest, reclaimed, crashed, requeued)
  return false
end

local function put_back(step, mark, message)
  local fate = 'ready'
  if ARGV[2] == 'died' then
    fate = count_death(message, mark, most, ARGV[5], KEYS[12], KEYS[13], KEYS[14])
    mark = ''
  elseif count(message) then
    fate = 'dead'
  else
    track_back(message)
  end
  if fate == 'dead' then
    dead_lettered = dead_lettered + 1
    return
  elseif fate == 'quarantined' then
    redis.call('LPUSH', KEYS[15], step .. '\n' .. message)
  elseif mark == '!' then
    redis.call(push, KEYS[15], step .. '\n' .. message)
  else
    redis.call(push, list_of[step] or KEYS[16], message)
  end
  moved = moved + 1
end

for i = from, to, by do
  if room <= 0 then
    break
  end
  local held = redis.call('HGET', KEYS[10], ARGV[i])
  take_room(held and #held or 0)
  looked = looked + 1
  local step, mark, start = read_leased(held)
  if step then
    put_back(step, mark, message_in(held, start))
  elseif held and held ~= '' then
    add_dead_letter(KEYS[13], KEYS[14], ARGV[i], to_ms(now_us()), 0, 'unreadable', held)
    corrupt = corrupt + 1
  elseif held then
    empty = empty + 1
  end
  redis.call('HDEL', KEYS[10], ARGV[i])
end
add_total(TOTALS, 'ready', moved)
add_total(TOTALS, 'redelivered', ARGV[2] ~= 'nothing' and moved or 0)
add_total(TOTALS, 'dead:crashed', dead_lettered)
add_total(TOTALS, 'dead:corrupt', corrupt)
add_total(TOTALS, 'empty', -empty)
if moved > 0 then
  wake(KEYS[11])
end
return {moved, dead_lettered + corrupt, looked}
