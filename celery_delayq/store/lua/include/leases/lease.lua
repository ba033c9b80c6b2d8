-- Lease time, and leased values.
--
-- Defines  lease_now  extend_lease  read_leased  leased_value
-- Expects  clock: to_ms  now_us  read_whole

-- Lease time (ms): Redis' clock less the periods in which lease time stood still ('stood', the sum
-- of these periods; a clock that was set back makes it smaller). Lease time stands
-- still while no dispatcher calls (an outage, a failover) and over jumps of the clock. So no lease
-- ends only because Redis could not hear its process.
--
-- 'max_gap' is the longest gap since the last call (ms) for which lease time goes on. 'now' is the
-- clock (ms), nil to read it.
local function lease_now(clock, max_gap, now)
  now = now or to_ms(now_us())
  local seen, stood = unpack(redis.call('HMGET', clock, 'seen', 'stood'))
  seen = read_whole(seen) or now
  local gap = now - seen
  if gap < 0 or gap > tonumber(max_gap) then
    gap = 0
  end
  return seen + gap - (read_whole(stood) or 0)
end

-- Extend the lease of a worker id, and plan a look at the time when it ends.
local function extend_lease(leases, lease_ends, queue, worker_id, ends)
  redis.call('ZADD', leases, ends, worker_id)
  redis.call('ZADD', lease_ends, 'LT', ends, queue)
end

-- Read a value in the hash of a worker id: "<priority step>[!]\n" and the message; '!' means
-- delivered alone. A message of step 0 with 64 KiB or more that begins with '{' has no such line. A
-- value is empty after a retry has replaced the message. Returns step, mark and start of the
-- message; nil for an empty or unreadable value.
local function read_leased(value)
  if string.byte(value or '') == 123 then
    return '0', '', 1
  end
  return string.match(value or '', '^(%d+)(!?)\n()')
end

local function leased_value(step, message)
  local is_alone = step == '0' and #message >= 65536 and string.byte(message) == 123
  return is_alone and message or step .. '\n' .. message
end
