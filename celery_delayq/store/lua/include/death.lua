-- Count that a process ended while it held a message, and tell what is to become of that: 'ready';
-- 'suspect', to be delivered alone, since it was held too often when its process ended; 'dead', it
-- was alone with that process, and is a dead letter by now.
local function count_death(message, mark, most, incarnation, deliveries, dead, dead_at)
  local digest = redis.sha1hex(message)
  local reaped, crashed, requeued = read_deliveries(redis.call('HGET', deliveries, digest))
  reaped = reaped + 1
  if most > 0 and reaped > most and mark == '!' then
    redis.call('HDEL', deliveries, digest)
    forget_tracked(RUNNING, message)
    bury_letter(dead, dead_at, read_label(message) or digest, to_ms(now_us()), 0,
      string.format('its worker died %d times, the last time with nothing else', reaped), message,
      string.format('{"worker": "%s", "deliveries": %d}', incarnation, reaped + crashed + requeued))
    return 'dead'
  end
  track_back(message)
  write_deliveries(deliveries, digest, reaped, crashed, requeued)
  return most > 0 and reaped >= most and 'suspect' or 'ready'
end
