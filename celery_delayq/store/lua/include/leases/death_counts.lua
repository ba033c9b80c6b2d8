-- Count deliveries that failed, and the deaths of processes that had leased a message.
--
-- Defines  read_deliveries  write_deliveries  count_death
-- Expects  clock: to_ms  now_us
--          limits/permits: end_lease  track_requeued
--          dead_letter: add_dead_letter
--          record: read_label

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
local function count_death(queue, message, mark, most, worker_id, deliveries, dead, dead_at)
  local digest = redis.sha1hex(message)
  local reclaimed, crashed, requeued = read_deliveries(redis.call('HGET', deliveries, digest))
  reclaimed = reclaimed + 1
  if most > 0 and reclaimed > most and mark == '!' then
    redis.call('HDEL', deliveries, digest)
    end_lease(queue, message)
    add_dead_letter(dead, dead_at, read_label(message) or digest, to_ms(now_us()), 0,
      string.format('its worker died %d times, the last time with no other message', reclaimed),
        message,
      string.format('{"worker": "%s", "deliveries": %d}', worker_id,
        reclaimed + crashed + requeued))
    return 'dead'
  end
  track_requeued(queue, message)
  write_deliveries(deliveries, digest, reclaimed, crashed, requeued)
  return most > 0 and reclaimed >= most and 'quarantined' or 'ready'
end
