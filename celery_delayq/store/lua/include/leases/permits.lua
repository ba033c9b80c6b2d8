-- Permits and slots: how many messages of a lane are leased, and when the next one may be.
--
-- Each leased message of a limit has a permit. PERMITS has a member for each:
-- "<lane> NUL <queue> NUL <id> NUL <message id>". SLOTS has, for each lane with a rate, the time
-- (µs) up to which its slots are used: each message uses one interval (generic cell rate algorithm).
-- A lane that waits for a permit is in BLOCKED_LANES: "<lane> NUL <queue>". When a permit comes
-- back, FREED_LANES gets "<queue> NUL <lane>", and the queue a look.
--
-- Defines  permit_member  used_until  moment_of_next  take_permit  free_permit
--            give_back_permit  end_lease
--            track_requeued  unblock_freed_lanes  forget_old_slots
-- Expects  KEYS.permits  KEYS.slots  KEYS.blocked_lanes  KEYS.freed_lanes  KEYS.next_due
--            ARGV.wake_channel
--          clock: now_us  to_ms
--          record: read_label  read_lane
--          tracking: lane_range  LANES  LEASED_INDEX  READY_INDEX  forget_tracked
--            untrack_message  track_message
--          dispatch/next_due: plan_look

local function permit_member(lane, queue, id, message_id)
  return table.concat({lane, queue, id, message_id}, '\0')
end

local function used_until(lane, limit, time_us)
  local used = tonumber(redis.call('ZSCORE', KEYS.slots, lane) or 0)
  -- The clock may have been set back, and the interval may have been longer.
  return math.max(time_us, math.min(used, time_us + limit.interval * limit.burst))
end

-- When the next message of a lane may be leased (µs): 'time_us' for now, infinity if the lane waits
-- for a permit. Also returns whether permits are scarce: half of them are taken.
local function moment_of_next(lane, limit, time_us)
  if not limit then
    return time_us, false
  end
  local is_scarce = false
  if limit.concurrency > 0 then
    local first, last = lane_range(lane)
    local taken = redis.call('ZLEXCOUNT', KEYS.permits, first, last)
    if taken >= limit.concurrency then
      return math.huge, true
    end
    is_scarce = 2 * taken >= limit.concurrency
  end
  if limit.interval > 0 then
    local ahead = used_until(lane, limit, time_us) - time_us - (limit.burst - 1) * limit.interval
    if ahead > 0 then
      -- Wait for the slots of 10 ms: a look for each slot would cost too much.
      local more = math.min(limit.burst - 1, math.floor(10000 / limit.interval))
      return math.ceil(time_us + ahead + more * limit.interval), is_scarce
    end
  end
  return time_us, is_scarce
end

-- Take a permit, and use a slot.
local function take_permit(lane, limit, queue, id, message_id, time_us)
  redis.call('ZADD', KEYS.permits, 0, permit_member(lane, queue, id, message_id))
  if limit and limit.interval > 0 then
    redis.call('ZADD', KEYS.slots, used_until(lane, limit, time_us) + limit.interval, lane)
  end
end

-- Remove a permit. Queues whose lanes wait for it get a look.
local function free_permit(lane, permit)
  if redis.call('ZREM', KEYS.permits, permit) == 0 then
    return
  end
  local first, last = lane_range(lane)
  local blocked = redis.call('ZRANGEBYLEX', KEYS.blocked_lanes, first, last, 'LIMIT', 0, 100)
  for _, member in ipairs(blocked) do
    local time_us, waiting = now_us(), string.sub(member, #lane + 2)
    redis.call('ZREM', KEYS.blocked_lanes, member)
    redis.call('ZADD', KEYS.freed_lanes, 0, waiting .. '\0' .. lane)
    plan_look(KEYS.next_due, waiting, to_ms(time_us), time_us, ARGV.wake_channel)
  end
end

-- Give back the permit of a message whose lease has ended.
local function give_back_permit(queue, message, behind, id, message_id)
  local lane = read_lane(message, behind)
  if lane then
    free_permit(lane, permit_member(lane, queue, id, message_id))
  end
end

-- End the lease of a message that leaves its queue. Returns its mark.
local function end_lease(queue, message, start)
  local mark, id, message_id, behind = forget_tracked(LEASED_INDEX, message, start)
  give_back_permit(queue, message, behind, id, message_id)
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

-- Let the lanes of this queue go for which a permit came back.
local function unblock_freed_lanes(queue, time_us)
  local first, last = lane_range(queue)
  for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS.freed_lanes, first, last, 'LIMIT', 0, 100))
    do
    redis.call('ZADD', LANES, 'XX', time_us, string.sub(member, #queue + 2))
    redis.call('ZREM', KEYS.freed_lanes, member)
  end
end

-- Forget some slots that are free again.
local function forget_old_slots(time_us)
  local old = redis.call('ZRANGEBYSCORE', KEYS.slots, '-inf', time_us, 'LIMIT', 0, 10)
  if #old > 0 then
    redis.call('ZREM', KEYS.slots, unpack(old))
  end
end
