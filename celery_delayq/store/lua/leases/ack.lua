-- Acknowledge finished messages, at most 100 if messages are tracked; stops after reading about 1
-- MB. The variant +limits gives back their permits.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  leased  deliveries  history  history_index  history_index_before
--          next_due  permits  blocked_lanes  freed_lanes  limits  lanes_wake
-- ARGV     queue  wake_channel
--          history_size: about how many runs to keep, 0 for no history
--          run_lines: with a history, a line for the run of each message and a line feed behind
--            each; an empty line for no run
--          fields…: fields of the messages
-- Returns  {number of messages that were leased, number of fields done, from the first one on}
-- Repeat   {0, number of fields done}
-- Roles    worker
-- @include clock
-- @include types
-- @include byte_limit
-- @include record
-- @include tracking
-- @include totals
-- @include leases/lease
-- @with limits
-- @include wake
-- @include limits/lanes
-- @include dispatch/next_due
-- @include limits/permits
-- @end
-- @include history

local most = tonumber(ARGV.history_size)
local is_tracking, has_deliveries = read_typed('hash', 'HLEN', LEASED_INDEX) > 0, false
duplicate_ids_there = false
if redis.call('EXISTS', KEYS.deliveries, UNIQUE, DUPLICATE_IDS) > 0 then
  has_deliveries = redis.call('EXISTS', KEYS.deliveries) == 1
  is_tracking = is_tracking or has_deliveries
  if is_tracking then
    expect_state()
  end
end
-- Whether values may be empty, since a retry has replaced the message.
local some_empty = not is_tracking and (redis.pcall('HGET', TOTALS, 'empty') or '0') ~= '0'

-- Number of messages that did not run, by their mark: cancelled, replaced.
local dropped = {['!'] = 0, ['!!'] = 0}

local function forget(value)
  local _, _, start = read_leased(value)
  if start then
    if has_deliveries then
      redis.call('HDEL', KEYS.deliveries, redis.sha1hex(message_in(value, start)))
    end
    -- @without limits
    local mark = forget_tracked(LEASED_INDEX, value, start)
    -- @end
    -- @with limits
    local mark = end_lease(ARGV.queue, value, start, ARGV.queue)
    -- @end
    if dropped[mark] then
      dropped[mark] = dropped[mark] + 1
    end
  end
end

local fields, sizes = {select(FIRST.fields, unpack(ARGV))}, {}
local done = is_tracking and math.min(#fields, 100) or #fields
local looks_at_each = is_tracking or most > 0 or some_empty
local acked = 0
for i = 1, looks_at_each and done or 0 do
  if bytes_left <= 0 then
    done = i - 1
    break
  elseif is_tracking then
    local value = redis.call('HGET', KEYS.leased, fields[i])
    sizes[i] = value and #value or 0
    take_bytes(sizes[i])
    forget(value)
  else
    sizes[i] = redis.call('HSTRLEN', KEYS.leased, fields[i])
  end
  acked = acked + (sizes[i] > 0 and 1 or 0)
end
local known = redis.call('HDEL', KEYS.leased, unpack(fields, 1, done))
acked = looks_at_each and acked or known
add_total(TOTALS, 'acked', acked - dropped['!'] - dropped['!!'])
add_total(TOTALS, 'cancelled', dropped['!'])
add_total(TOTALS, 'replaced', dropped['!!'])
add_total(TOTALS, 'empty', acked - known)
if most > 0 then
  local i = 0
  for line in string.gmatch(ARGV.run_lines, '([^\n]*)\n') do
    i = i + 1
    -- An empty value was replaced by a retry: leases/replace.lua has written the line.
    if i <= done and sizes[i] > 0 then
      add_run(most, line)
    end
  end
end
-- @with limits
-- The lanes of this queue need no look of a dispatcher: consumers may take from them now. The
-- messages are acknowledged already, so a key of another type must not raise.
local function free_lanes()
  local time_us = now_us()
  if redis.call('ZCARD', KEYS.freed_lanes) > 0 and unblock_freed_lanes(ARGV.queue, time_us) then
    plan_look(KEYS.next_due, ARGV.queue, to_ms(time_us), time_us, ARGV.wake_channel)
  end
  -- Also a lane that was not tried, since this process could run no more of its messages.
  if may_lane_go(time_us) then
    wake_consumers(KEYS.lanes_wake)
  end
end

if is_tracking then
  pcall(free_lanes)
end
-- @end
return {known, done}
