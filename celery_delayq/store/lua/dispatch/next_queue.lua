-- Return the queue to look at next, and queues with ended leases. A dispatcher calls it before it
-- sleeps.
--
-- The call advances lease time, and takes or keeps the duty of the fleet. If nothing is due, the
-- script notes that dispatchers are up to date. The dispatcher on duty publishes its call to the
-- others, with '1' if a dispatcher looks at the ready lists, else '0'. After the clock was set back,
-- every queue gets a look now: each call plans a portion of them.
--
-- KEYS     next_due  lease_ends  clock  queues
-- ARGV     max_gap_ms: longest gap between two calls for which lease time goes on (ms); over a
--            longer gap, and when the clock is set back, lease time stands still
--          dispatcher: the dispatcher, '' for one that does not take the duty
--          channel: the channel to which dispatchers listen, '' for a dispatcher that does not
--            listen
--          ready_look_ms: longest time between two looks at the ready lists (ms), 0 for a
--            dispatcher that does not look at them
--          other_queues…: queues that this dispatcher leaves to others
-- Returns  {now (µs), queue or '', due (ms) or '', 1 if the dispatcher is on duty, else 0,
--          number of dispatchers that listen (0 if unknown), number of registered queues,
--          who looks at the ready lists (2 this dispatcher now, 1 another one, 0 nobody),
--          some of the queues with an ended lease…}
-- Repeat   the same, but another dispatcher looks at the ready lists
-- Roles    worker, dispatcher
-- @include clock
-- @include dispatch/next_due
-- @include leases/lease
-- @include dispatch/duty

-- If no dispatcher calls for longer than this (ms), ticks that are due meanwhile count as missed.
local AWAY_MS = 2000

-- Who looks at the ready lists. Any dispatcher may, not only the one on duty.
local function ready_turn(clock, most, now)
  local looked = read_whole(redis.call('HGET', clock, 'ready_looked')) or 0
  local is_fresh = looked <= now and now - looked < math.max(most, 1000)
  if most > 0 and not (is_fresh and now - looked < most) then
    redis.call('HSET', clock, 'ready_looked', string.format('%.0f', now))
    return 2
  end
  return is_fresh and 1 or 0
end

-- Number of queues that one call checks after the clock was set back.
local PORTION = 1000

-- Plan a look now at a portion of the queues. The clock was set back, so a look that was planned
-- later than the due of an entry, after an error or by a rate, would come much too late. CLOCK has
-- the cursor of the next portion.
local function look_at_portion(next_due, clock, cursor, ms)
  local following, found = unpack(redis.call('ZSCAN', next_due, cursor, 'COUNT', PORTION))
  for i = 1, #found, 2 do
    if tonumber(found[i + 1]) > ms then
      redis.call('ZADD', next_due, ms, found[i])
    end
  end
  if following == '0' then
    redis.call('HDEL', clock, 'cursor')
  else
    redis.call('HSET', clock, 'cursor', following)
  end
end

-- Note the period without a dispatcher. If entries of an earlier such period are still scheduled,
-- the periods are joined: the dispatcher that ended the earlier one may have died at once.
local function note_absence(clock, first_due, seen, ms)
  local from, to = unpack(redis.call('HMGET', clock, 'away_from', 'away_to'))
  from, to = read_whole(from), read_whole(to)
  if from and to and first_due and first_due < to then
    seen = math.min(seen, from)
  end
  redis.call('HSET', clock, 'away_from', string.format('%.0f', seen), 'away_to',
    string.format('%.0f', ms))
end

local now = now_us()
local ms = to_ms(now)
local seen = read_whole(redis.call('HGET', KEYS.clock, 'seen')) or 0
-- A full server must accept the script: see dispatch/promote.lua. In the reply, '' means no queue.
redis.call('ZREM', KEYS.lease_ends, '')
redis.call('ZREM', KEYS.next_due, '')
local cursor = seen - ms > 1000 and 0 or read_whole(redis.call('HGET', KEYS.clock, 'cursor'))
if seen - ms > 1000 then
  redis.call('HSET', KEYS.clock, 'set_back', string.format('%.0f', ms)) -- see dispatch/promote.lua
end
if cursor and cursor >= 0 then
  look_at_portion(KEYS.next_due, KEYS.clock, cursor, ms)
end
local reply = next_due_head(KEYS.next_due, now, FIRST.other_queues)
if seen > 0 and (ms < seen or ms - seen > tonumber(ARGV.max_gap_ms)) then
  local stood = read_whole(redis.call('HGET', KEYS.clock, 'stood')) or 0
  redis.call('HSET', KEYS.clock, 'stood', string.format('%.0f', stood + ms - seen))
end
if seen > 0 and ms - seen > AWAY_MS then
  note_absence(KEYS.clock, tonumber(next_due_head(KEYS.next_due, now)[3]), seen, ms)
end
-- Written by some calls only, since a large fleet calls often.
if ms < seen or ms - seen >= math.min(200, ARGV.max_gap_ms / 10) then
  local seen_now = string.format('%.0f', ms)
  redis.call('HSET', KEYS.clock, 'seen', seen_now)
  local due = next_due_head(KEYS.next_due, now)[3]
  if due == '' or tonumber(due) > ms then
    redis.call('HSET', KEYS.clock, 'dispatched', seen_now)
  end
end
local listening = ARGV.channel ~= '' and redis.pcall('PUBSUB', 'NUMSUB', ARGV.channel) or {}
local fleet = tonumber(listening[2]) or 0
reply[4], reply[5] = take_duty(KEYS.clock, ARGV.dispatcher, fleet == 1, ms), fleet
-- A registry of another type must not stop promotion.
local queues = redis.pcall('HLEN', KEYS.queues)
reply[6] = type(queues) == 'number' and queues or 0
reply[7] = ready_turn(KEYS.clock, tonumber(ARGV.ready_look_ms), ms)
if reply[4] == 1 and fleet > 1 then
  redis.pcall('PUBLISH', ARGV.channel, math.min(reply[7], 1))
end
local ended = redis.call(
  'ZRANGEBYSCORE', KEYS.lease_ends, '-inf', lease_now(KEYS.clock, ARGV.max_gap_ms), 'LIMIT', 0, 100)
for _, queue in ipairs(ended) do
  reply[#reply + 1] = queue
end
return reply
