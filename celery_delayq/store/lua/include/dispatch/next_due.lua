-- The next-due index has the time of the next look at each queue. This is the due of its earliest
-- entry. It is later after an error, and if a limit holds back entries that are due.
--
-- Defines  next_due_head  hint_look  plan_look  register_due  next_lane_moment  plan_next_look
--            plan_look_on_removal
-- Expects  record: PAUSED_OFFSET

-- {now (µs), queue, due (ms)} of the first queue to look at. Skips queues that are named in ARGV
-- from 'first' on. The queue is '' if there is none.
local function next_due_head(next_due, now, first)
  local left = {}
  for i = first or #ARGV + 1, #ARGV do
    left[ARGV[i]] = true
  end
  local heads = redis.call('ZRANGE', next_due, 0, first and #ARGV + 1 - first or 0, 'WITHSCORES')
  for i = 1, #heads, 2 do
    if not left[heads[i]] then
      return {now, heads[i], heads[i + 1]}
    end
  end
  return {now, '', ''}
end

-- Tell dispatchers when to look at a queue. A hint only: without it, for an account that may not
-- publish, dispatchers look one poll interval later.
local function hint_look(channel, queue, due, now)
  redis.pcall('PUBLISH', channel, string.format('%.0f ', due * 1000 - now) .. queue)
end

-- Plan a look at a queue when its entry is due. Wakes the dispatchers if the look is the earliest
-- of all queues.
local function plan_look(next_due, queue, due, now, channel)
  local next_look = redis.call('ZSCORE', next_due, queue)
  if next_look and tonumber(next_look) <= due then
    return
  end
  local head = redis.call('ZRANGE', next_due, 0, 0, 'WITHSCORES')
  redis.call('ZADD', next_due, due, queue)
  if not head[2] or due < tonumber(head[2]) then
    hint_look(channel, queue, due, now)
  end
end

-- Register a queue, and plan a look at it when its entry is due.
local function register_due(next_due, queues, queue, layout, due, now, channel)
  redis.call('HSETNX', queues, queue, layout)
  plan_look(next_due, queue, due, now, channel)
end

-- The next time (ms) at which a lane may go that may not go now; nil for none. Also returns the
-- lane. See include/limits/lanes.lua.
local function next_lane_moment(lanes, time_us)
  local lane, moment = unpack(redis.call('ZRANGEBYSCORE', lanes,
    '(' .. string.format('%.0f', time_us), '(+inf', 'WITHSCORES', 'LIMIT', 0, 1))
  return moment and math.ceil(tonumber(moment) / 1000), lane
end

-- Plan the next look at a queue by the earliest entry in its schedule, and by its lanes. An entry
-- that is held needs no look itself.
local function plan_next_look(next_due, queue, due_key, lanes, time_us)
  local first = redis.call('ZRANGE', due_key, 0, 0, 'WITHSCORES')
  local look = first[2] and tonumber(first[2]) < PAUSED_OFFSET and first[2]
  if lanes then
    local moment = next_lane_moment(lanes, time_us)
    look = moment and math.min(moment, look and tonumber(look) or moment) or look
  end
  if look then
    redis.call('ZADD', next_due, look, queue)
  else
    redis.call('ZREM', next_due, queue)
  end
end

-- Plan the next look when entries have left the schedule. If an entry is held, the planned look
-- stays: it may have been planned when the task of the entry was resumed, or for its lane.
local function plan_look_on_removal(next_due, queue, due_key)
  local last = redis.call('ZRANGE', due_key, -1, -1, 'WITHSCORES')
  if tonumber(last[2] or 0) < PAUSED_OFFSET then
    plan_next_look(next_due, queue, due_key)
  end
end
