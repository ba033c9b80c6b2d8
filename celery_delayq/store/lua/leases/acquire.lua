-- Lease messages of one queue to a process, at most as many as it asks for and about 1 MB; none of
-- a paused one.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 wake  12 leased  13 leases  14 lease_ends
--          15 clock  16 deliveries  17 quarantined  18 quarantine_turn  19 request_numbers
--          20 control  21 pace  22 dead  23 dead_at  24… ready lists, the most urgent first
-- ARGV     1 queue  2 worker id  3 lease (ms)  4 message id, a number that grows  5 most messages
--          6 how many ready lists to take from  7 how many messages the process holds of any
--          queue, or may get by other calls; -1 when it cannot make room for long  8 wake channel
--          9 '1' to lease also messages that do not run, since the process reports that, else '0'
--          10… the priority steps of KEYS[24…]
-- Returns  {place of the first ready list with something left, 0 for none; '1' when delivered
--          alone, '2' when the process is to take nothing until it holds nothing, else '0', and '+'
--          behind it where stock producers have pushed some; the revision of what is paused and
--          revoked, then the fields '<request_number>:<place>[<mark>[<ms late>]][@<when ready, ms>]'
--          of the messages, after spaces (include/tracking.lua has the marks); what is known of their
--          deliveries before, each after a comma, or '' when nothing is known of any; then the
--          messages}
-- Repeat   returns what is still held of the same message id, and takes nothing
-- @include clock
-- @include types
-- @include room
-- @include record
-- @include tracking
-- @include totals
-- @include wake
-- @include lease
-- @include dispatch/next_due
-- @include dead_letter
-- @include dispatch/rate_limit

local queue, worker_id, lease, request_number = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local limit, lists = tonumber(ARGV[5]), tonumber(ARGV[6])
local reply = {0, '0', '', ''}

-- Before anything moves, all that can be refused.
local held = read_typed('hash', 'HLEN', KEYS[12])
local ended = tonumber(read_typed('zset', 'ZSCORE', KEYS[13], worker_id) or 0)
-- Moving frees memory, so a full server must let it pass: see dispatch/promote.lua.
read_typed('zset', 'ZREM', KEYS[14], '')
local last = read_whole(read_typed('hash', 'HGET', KEYS[19], worker_id)) or 0
local revision, paused = unpack(read_typed('hash', 'HMGET', KEYS[20], 'revision', 'q' .. queue))
local in_ready_index, untracked = read_typed('hash', 'HLEN', READY_INDEX), 0
local tracked = in_ready_index > 0
local leased = read_typed('hash', 'HLEN', LEASED_INDEX) > 0
-- What is mostly not there, which one command tells: 'some' is.
local counted, quarantined, below = false, 0, nil
local rare = {UNIQUE, DUPLICATE_IDS, KEYS[16], KEYS[17], KEYS[21], KEYS[22], KEYS[23], select(25, unpack(KEYS))}
local some = redis.call('EXISTS', unpack(rare)) > 0
if some then
  counted = read_typed('hash', 'HLEN', KEYS[16]) > 0
  quarantined = read_typed('list', 'LLEN', KEYS[17])
  below = read_typed('hash', 'HGET', KEYS[21], 'below')
end
if some and (tracked or leased) then
  expect_type(ENTRIES, 'hash')
  expect_type(UNIQUE, 'hash')
  expect_type(DUPLICATE_IDS, 'zset')
  expect_types(22, 'hash', 'zset')
elseif not some then
  duplicate_ids_there = false
end
if below then
  expect_type(KEYS[10], 'zset')
end
local ready, there = {}, 0
for i = 24, #KEYS do
  ready[i] = (some or i == 24) and read_typed('list', 'LLEN', KEYS[i]) or 0
  there = there + ready[i]
end
local clock = now_us()
local ends = lease_now(KEYS[15], lease / 3, to_ms(clock)) + lease

local waiting_before = there + quarantined
local dropped = {}

local told, counts = {}, {}

local function tell(field, message, promoted, mark)
  reply[#reply + 1] = message
  told[#told + 1] = ' ' .. field .. mark .. (promoted ~= '' and '@' .. promoted or '')
  if counted then
    counts[#counts + 1] = ',' .. (redis.call('HGET', KEYS[16], redis.sha1hex(message)) or '')
  end
end

local LATE = '!!!'

-- A mark as the process gets it.
local function told_mark(mark, due)
  return mark == LATE and string.format('%s%.0f', mark, to_ms(clock) - due) or mark
end

-- Whether another message has the id of one that was just untracked. Nothing is reported then: who
-- waits for that id waits for the other one.
local function has_other(id, message_id)
  for _, index in ipairs({ENTRIES, READY_INDEX, LEASED_INDEX}) do
    -- Messages are on their way already: an index of a wrong type must not raise.
    if redis.pcall('HEXISTS', index, id) == 1 then
      return true
    end
  end
  local names = has_duplicate_ids() and redis.call('ZRANGEBYLEX', DUPLICATE_IDS,
    '[' .. duplicate_name(id, ''), '(' .. id .. '\1', 'LIMIT', 0, 2) or {}
  return #names > 1 or names[1] ~= nil and names[1] ~= duplicate_name(id, message_id)
end

-- Note who holds a message. Returns when it became ready, '' where that is not known, and its mark; nil
-- for one that does not run and is dropped.
local function admit(message)
  local id, its_message_id, skip, unique = read_label(message)
  if not id then
    return '', ''
  end
  local mark, due, rest, promoted, was_there = untrack(READY_INDEX, id, its_message_id, unique)
  untracked = untracked + (was_there and 1 or 0)
  if mark == '' and skip > 0 and due > 0 and to_ms(clock) - due > skip then
    mark = LATE
  end
  if mark == '' or ARGV[9] == '1' and not has_other(id, its_message_id) then
    track(LEASED_INDEX, id, its_message_id, rest .. ' ' .. worker_id, mark)
    if mark ~= '' then
      release_key(unique, id, its_message_id)
    end
    return promoted, told_mark(mark, due)
  end
  if mark == LATE then
    add_dead_letter(KEYS[22], KEYS[23], id, to_ms(clock), due, skip_reason(to_ms(clock), due, skip),
      message)
  end
  dropped[mark] = (dropped[mark] or 0) + 1
  forget_tracked(READY_INDEX, message)
  if counted then
    redis.call('HDEL', KEYS[16], redis.sha1hex(message))
  end
  return nil
end

-- The mark of a message that the process holds already.
local function mark_of(message)
  local id, its_message_id = read_label(message)
  local _, value
  if id then
    _, value = find_tracked(LEASED_INDEX, id, its_message_id)
  end
  local mark, _, due = read_tracked(value)
  return told_mark(mark or '', tonumber(due or 0))
end

-- What is held of a call whose reply was lost, or that came late over a connection given up.
local function repeated()
  for place = 1, limit do
    local field = request_number .. ':' .. place
    local item = redis.call('HGET', KEYS[12], field)
    local _, mark, start = read_leased(item)
    if start then
      reply[2] = mark == '!' and '1' or reply[2]
      local message = message_in(item, start)
      tell(field, message, '', mark_of(message))
    end
  end
end

-- A message under suspicion of killing its worker is delivered alone, so that nothing else is
-- blamed or lost time with it. One worker at a time takes nothing more until it is free for it.
local function take_quarantined()
  if quarantined == 0 then
    return false
  end
  if held > 0 or tonumber(ARGV[7]) ~= 0 then
    if tonumber(ARGV[7]) < 0 then
      return false
    end
    if redis.call('PTTL', KEYS[18]) > lease then
      redis.call('PEXPIRE', KEYS[18], lease) -- the clock was set back
    end
    redis.call('SET', KEYS[18], worker_id, 'PX', lease, 'NX')
    if redis.call('GET', KEYS[18]) ~= worker_id then
      return false
    end
    reply[2] = '2'
    return true
  end
  local item = redis.call('LINDEX', KEYS[17], -1)
  local step, _, start = read_leased(item)
  local message = message_in(item, start or 1)
  local promoted, its_mark = admit(message)
  if promoted then
    local field = request_number .. ':1'
    redis.call('HSET', KEYS[12], field, (step or ARGV[10]) .. '!\n' .. message)
    tell(field, message, promoted, its_mark)
    reply[2] = '1'
  end
  redis.call('RPOP', KEYS[17])
  redis.call('DEL', KEYS[18])
  quarantined = quarantined - 1
  return true
end

local function take()
  local place, fields = 0, {}
  local function hold()
    if #fields > 0 then
      redis.call('HSET', KEYS[12], unpack(fields))
      fields = {}
    end
  end
  for i = 24, 23 + lists do
    for _ = 1, math.min(ready[i], limit - place) do
      if room <= 0 then
        break
      end
      local message = redis.call('RPOP', KEYS[i])
      take_room(#message)
      ready[i] = ready[i] - 1
      there = there - 1
      local promoted, mark = admit(message)
      if promoted then
        place = place + 1
        local field = request_number .. ':' .. place
        fields[#fields + 1] = field
        fields[#fields + 1] = leased_text(ARGV[i - 14], message)
        tell(field, message, promoted, mark)
      end
      if #fields >= 1000 then
        hold() -- the stack of Lua has an end
      end
    end
  end
  hold()
end

if tonumber(request_number) <= last then
  repeated()
elseif not paused and not take_quarantined() then
  take()
end
local others = count_others(TOTALS, waiting_before)
add_total(TOTALS, 'ready', others + there + quarantined - waiting_before)
if others > 0 then
  reply[2] = reply[2] .. '+'
end
add_total(TOTALS, 'cancelled', dropped['!'] or 0)
add_total(TOTALS, 'replaced', dropped['!!'] or 0)
add_total(TOTALS, 'dead:skipped', dropped[LATE] or 0)
if #reply > 4 then
  redis.call('HSET', KEYS[19], worker_id, math.max(last, tonumber(request_number)))
  if ended < ends then
    -- By a hundredth more: then the next calls need not.
    hold_lease(KEYS[13], KEYS[14], queue, worker_id, ends + math.floor(lease / 100))
  end
end
if not paused then
  for i = #KEYS, 24, -1 do
    if ready[i] > 0 then
      reply[1] = i - 23
    end
  end
end
local waiting = not paused and quarantined > 0 and redis.call('EXISTS', KEYS[18]) == 0
if reply[1] > 0 or waiting then
  wake(KEYS[11])
else
  redis.call('DEL', KEYS[11])
end
if (in_ready_index > 0 and some or in_ready_index > untracked) and there == 0 and quarantined == 0 then
  forget_waiting()
end
if below and there < (read_whole(below) or 0) then
  look_when_below(KEYS[21], KEYS[10], queue, clock, ARGV[8])
end
reply[3] = string.format('%.0f', read_whole(revision) or 0) .. table.concat(told)
reply[4] = table.concat(counts)
return reply
