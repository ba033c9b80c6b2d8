-- Lanes: where due entries of tasks with a limit wait.
--
-- A lane is all tasks with one limit and one key. Its name is "<limit>:<key>". HELD has the entries
-- of all lanes of a queue: include/tracking.lua has the form of a member. LANES has, for each lane
-- with entries, the time (µs) at which leases/acquire.lua tries to take its first entry: a time in
-- the past if this may succeed now, 'inf' while the lane waits for a permit.
--
-- LIMITS has the definitions: field 'c' and the name of the limit for what the code says, 'o' and
-- the name for what people have set, which takes precedence. A definition is "<µs between two
-- messages, 0 for no rate> <burst> <concurrency, 0 for none> <1 if lanes take turns, else 0>". A
-- limit without a definition limits nothing. Field 'r' and the name has the time (µs) at which the
-- rate or the burst of the limit was changed.
--
-- Defines  limits_read  turns  last_dues  limit_of  turn_moment  LATEST_DUE_MS  due_of_arrival
--            hold_entries  limited_lane  may_lane_go
-- Expects  KEYS.limits
--          types: read_typed
--          record: PAUSED_OFFSET  read_lane
--          tracking: DUE  HELD  LANES  lane_member  due_in_lane

local limits_read, turns, last_dues = {}, 0, {}

-- The definition of the limit of a lane, nil if there is none.
local function limit_of(lane)
  local name = string.match(lane, '^[^:]*')
  local definition = limits_read[name]
  if definition == nil then
    local set, of_code, changed = unpack(read_typed('hash', 'HMGET', KEYS.limits, 'o' .. name,
      'c' .. name, 'r' .. name))
    local interval, burst, concurrency, fair = string.match(set or of_code or '',
      '^(%d+%.?%d*) (%d+) (%d+) ([01])$')
    definition = interval ~= nil and {
      -- Sums of it and of times must be exact: a time in µs has room for half a µs, no less.
      interval = math.ceil(tonumber(interval) * 2) / 2,
      burst = tonumber(burst), concurrency = tonumber(concurrency), is_fair = fair == '1',
      changed = tonumber(changed or 0) or 0}
    limits_read[name] = definition
  end
  return definition or nil
end

-- The moment in LANES of a lane that may go. If lanes take turns, the lane comes behind all others;
-- else behind those with entries that were due earlier.
local function turn_moment(definition, due, time_us)
  turns = turns + 1
  -- A little in the past, so that a call deals several turns.
  if definition and definition.is_fair then
    return time_us - 1000 + turns
  end
  return math.min(due * 1000, time_us)
end

-- How far (ms) the due of a message without ETA may be ahead of the clock.
local LATEST_DUE_MS = 1000

-- The due (ms) of a message without ETA, so that its lane keeps the order of arrival: now, or just
-- after the last entry of the lane. Names are random: they give entries of one ms no order.
local function due_of_arrival(lane, step, now)
  local place = lane .. '\0' .. string.format('%03d', step)
  local last = last_dues[place] or due_in_lane(redis.call('ZRANGE', HELD, '(' .. place .. '\1',
    '[' .. place .. '\0', 'BYLEX', 'REV', 'LIMIT', 0, 1)[1] or '')
  local due = math.max(now, math.min(last + 1, now + LATEST_DUE_MS))
  last_dues[place] = due
  return due
end

-- Hold entries that are due in their lanes, each {name, step, due, lane}: at most some 1,000, since
-- the stack of Lua has an end. Returns whether a further lane may go now.
local function hold_entries(entries, time_us)
  local dues, held, lanes = {}, {}, {}
  for i, one in ipairs(entries) do
    local name, step, due, lane = unpack(one)
    dues[2 * i - 1], dues[2 * i] = string.format('%.0f', due + PAUSED_OFFSET), name
    held[2 * i - 1], held[2 * i] = '0', lane_member(lane, step, due, name)
    lanes[2 * i - 1] = string.format('%.0f', turn_moment(limit_of(lane), due, time_us))
    lanes[2 * i] = lane
  end
  redis.call('ZADD', DUE, unpack(dues))
  redis.call('ZADD', HELD, unpack(held))
  return redis.call('ZADD', LANES, 'NX', unpack(lanes)) > 0
end

-- The lane of a message whose limit is defined, else nil.
local function limited_lane(message, behind)
  local lane = read_lane(message, behind)
  return lane and limit_of(lane) and lane or nil
end

-- Whether any lane may go now.
local function may_lane_go(time_us)
  return redis.call('ZCOUNT', LANES, '-inf', time_us) > 0
end
