-- Lease time, leased values, and counts of deliveries.
--
-- Defines  lease_now  extend_lease  read_leased  leased_value  read_deliveries  write_deliveries
--            count_death
-- Expects  clock: to_ms  now_us  read_whole
--          tracking: forget_tracked  LEASED_INDEX  track_requeued
--          dead_letter: add_dead_letter
--          record: read_label

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

-- Read the counts of failed deliveries: "<reclaimed> <crashed> <requeued>". The field is the SHA1
-- of the message's bytes, which never change.
local function read_deliveries(text)
  local reclaimed, crashed, requeued = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(reclaimed or 0), tonumber(crashed or 0), tonumber(requeued or 0)
end

local function write_deliveries(deliveries, digest, reclaimed, crashed, requeued)
  redis.call('HSET', deliveries, digest, string.format('%d %d %d', reclaimed, crashed, requeued))
end

-- Count the end of a process that had leased a message. Returns the message's next state. With most
-- (max_deliveries) 5, which is the default:
--
-- 1st to 4th end    'ready'
-- 5th end           'quarantined': the message will be delivered alone
-- each later end    'quarantined' if the process had other messages too, else 'dead'
local function count_death(message, mark, most, worker_id, deliveries, dead, dead_at)
  local digest = redis.sha1hex(message)
  local reclaimed, crashed, requeued = read_deliveries(redis.call('HGET', deliveries, digest))
  reclaimed = reclaimed + 1
  if most > 0 and reclaimed > most and mark == '!' then
    redis.call('HDEL', deliveries, digest)
    forget_tracked(LEASED_INDEX, message)
    add_dead_letter(dead, dead_at, read_label(message) or digest, to_ms(now_us()), 0,
      string.format('its worker died %d times, the last time with no other message', reclaimed),
        message,
      string.format('{"worker": "%s", "deliveries": %d}', worker_id,
        reclaimed + crashed + requeued))
    return 'dead'
  end
  track_requeued(message)
  write_deliveries(deliveries, digest, reclaimed, crashed, requeued)
  return most > 0 and reclaimed >= most and 'quarantined' or 'ready'
end
