-- Permits and slots: how many messages of a lane are leased, and when the next one may be.
--
-- Each leased message of a limit has a permit. PERMITS has a member for each:
-- "<lane> NUL <queue> NUL <id> NUL <message id>". SLOTS has, for each lane with a rate, the time
-- (µs) up to which its slots are used: each message uses one interval (generic cell rate algorithm).
-- A lane that waits for a permit is in BLOCKED_LANES: "<lane> NUL <queue>". When a permit comes
-- back, FREED_LANES gets "<queue> NUL <lane>", and the queue a look.
--
-- Defines  permit_member  used_until  SLOTS_US  TURN_MS  latest_moment  count_permits
--            moment_of_next  take_permit  blocked_in_turn  free_permit  give_back_permit  end_lease
--            track_requeued  unblock_freed_lanes  forget_old_slots
-- Expects  KEYS.permits  KEYS.slots  KEYS.blocked_lanes  KEYS.freed_lanes  KEYS.next_due
--            ARGV.wake_channel
--          clock: now_us  to_ms
--          record: read_label  read_lane
--          limits/lanes: turn_moment  limit_of
--          tracking: lane_range  due_in_lane  HELD  LANES  LEASED_INDEX  READY_INDEX  forget_tracked
--            untrack_message  track_message
--          dispatch/next_due: plan_look

local function permit_member(lane, queue, id, message_id)
  return table.concat({lane, queue, id, message_id}, '\0')
end

local function used_until(lane, definition, time_us)
  local used = tonumber(redis.call('ZSCORE', KEYS.slots, lane) or 0)
  local latest = time_us + definition.interval * definition.burst
  if used > latest then
    -- The clock was set back, or the interval was longer. Without the lower value the lane would
    -- wait for the former one.
    redis.call('ZADD', KEYS.slots, latest, lane)
    used = latest
  end
  if used > definition.changed and definition.changed <= time_us then
    -- Slots of the former rate do not count at this one: the lane goes on without its burst.
    used = math.max(used, definition.changed + definition.interval * definition.burst)
  end
  return math.max(time_us, used)
end

-- Lanes wait for the slots of 10 ms together: a look for each slot would cost too much.
local SLOTS_US = 10000

-- When a permit has come back, the queues that wait for it get their looks in turn. Time (ms)
-- between two such looks.
local TURN_MS = 100

-- The latest moment in LANES of a lane that does not wait for a permit.
local function latest_moment(definition, time_us)
  return time_us + (definition and definition.interval or 0) + SLOTS_US + TURN_MS * 1000
end

-- How many messages of a lane are leased.
local function count_permits(lane)
  local first, last = lane_range(lane)
  return redis.call('ZLEXCOUNT', KEYS.permits, first, last)
end

-- When the next message of a lane may be leased (µs): 'time_us' for now, infinity if the lane waits
-- for a permit. Also returns whether permits are scarce: less than nine tenths of them would be
-- left. Only of the first tenth may a process lease more messages than it can run now.
local function moment_of_next(lane, definition, time_us)
  if not definition then
    return time_us, false
  end
  local is_scarce = false
  if definition.concurrency > 0 then
    local taken = count_permits(lane)
    if taken >= definition.concurrency then
      return math.huge, true
    end
    is_scarce = 10 * (taken + 1) > definition.concurrency
  end
  if definition.interval > 0 then
    local ahead = used_until(lane, definition, time_us) - time_us
      - (definition.burst - 1) * definition.interval
    if ahead > 0 then
      local more = math.min(definition.burst - 1, math.floor(SLOTS_US / definition.interval))
      return math.ceil(time_us + ahead + more * definition.interval), is_scarce
    end
  end
  return time_us, is_scarce
end

-- Take a permit, and use a slot.
local function take_permit(lane, definition, queue, id, message_id, time_us)
  redis.call('ZADD', KEYS.permits, 0, permit_member(lane, queue, id, message_id))
  if definition and definition.interval > 0 then
    local used = used_until(lane, definition, time_us) + definition.interval
    redis.call('ZADD', KEYS.slots, used, lane)
  end
end

-- The queues whose lanes wait for a permit, as members of BLOCKED_LANES, at most 100. Those behind
-- the queue that gives the permit back come first, so that queues take turns.
local function blocked_in_turn(lane, queue)
  local first, last = lane_range(lane)
  local all = redis.pcall('ZRANGEBYLEX', KEYS.blocked_lanes, first, last, 'LIMIT', 0, 100)
  if #all < 2 then
    return all
  end
  local own = lane .. '\0' .. queue
  local found = redis.call('ZRANGEBYLEX', KEYS.blocked_lanes, '(' .. own, last, 'LIMIT', 0, 100)
  for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS.blocked_lanes, first, '[' .. own, 'LIMIT',
    0, 100 - #found)) do
    found[#found + 1] = member
  end
  return found
end

-- Remove a permit. Queues whose lanes wait for it get a look, one after the other. The caller wakes
-- the lanes of the queue 'woken' itself: its lane goes on at once if no other queue waits, else after
-- a turn of the others. The message has already moved, so a key of another type must not raise.
local function free_permit(lane, queue, permit, woken)
  -- Also without a permit: all permits may be lost, and lanes wait for one.
  redis.pcall('ZREM', KEYS.permits, permit)
  local blocked = blocked_in_turn(lane, queue)
  local time_us = #blocked > 0 and now_us()
  for place, member in ipairs(blocked) do
    local waiting = string.sub(member, #lane + 2)
    local look = to_ms(time_us) + (place - 1) * TURN_MS
    if waiting == woken and place > 1 then
      look = to_ms(time_us) + TURN_MS
      redis.call('ZREM', KEYS.blocked_lanes, member)
      redis.pcall('ZADD', LANES, 'XX', look * 1000, lane)
      pcall(plan_look, KEYS.next_due, waiting, look, time_us, ARGV.wake_channel)
    elseif type(redis.pcall('ZADD', KEYS.freed_lanes, 0, waiting .. '\0' .. lane)) == 'number' then
      redis.call('ZREM', KEYS.blocked_lanes, member)
      if waiting ~= woken then
        pcall(plan_look, KEYS.next_due, waiting, look, time_us, ARGV.wake_channel)
      end
    end
  end
end

-- Give back the permit of a message whose lease has ended.
local function give_back_permit(queue, message, behind, id, message_id, woken)
  local lane = read_lane(message, behind)
  if lane then
    free_permit(lane, queue, permit_member(lane, queue, id, message_id), woken)
  end
end

-- End the lease of a message that leaves its queue. Returns its mark.
local function end_lease(queue, message, start, woken)
  local mark, id, message_id, behind = forget_tracked(LEASED_INDEX, message, start)
  give_back_permit(queue, message, behind, id, message_id, woken)
  return mark
end

-- A leased message becomes ready again. It was in time once, so its skip_after no longer counts:
-- its due becomes 0.
local function track_requeued(queue, message, start)
  local id, message_id, skip, unique, behind = read_label(message, start)
  if id then
    local mark, _, rest = untrack_message(LEASED_INDEX, id, message_id, unique)
    if mark == '' and skip > 0 then
      rest = string.gsub(rest, '^%d+', '0')
    end
    track_message(READY_INDEX, id, message_id, rest, mark)
    give_back_permit(queue, message, behind, id, message_id)
  end
end

-- Let the lanes of this queue go for which a permit came back, 100 of them. Returns whether more
-- may follow.
local function unblock_freed_lanes(queue, time_us)
  local first, last = lane_range(queue)
  local freed = redis.call('ZRANGEBYLEX', KEYS.freed_lanes, first, last, 'LIMIT', 0, 100)
  for _, member in ipairs(freed) do
    local lane = string.sub(member, #queue + 2)
    local lane_first, lane_last = lane_range(lane)
    local head = redis.call('ZRANGEBYLEX', HELD, lane_first, lane_last, 'LIMIT', 0, 1)[1]
    if head then
      redis.call('ZADD', LANES, 'XX', turn_moment(limit_of(lane), due_in_lane(head), time_us), lane)
    end
    redis.call('ZREM', KEYS.freed_lanes, member)
  end
  return #freed == 100
end

-- Forget some slots that are free again.
local function forget_old_slots(time_us, most)
  local old = redis.call('ZRANGEBYSCORE', KEYS.slots, '-inf', time_us, 'LIMIT', 0, most)
  if #old > 0 then
    redis.call('ZREM', KEYS.slots, unpack(old))
  end
end
