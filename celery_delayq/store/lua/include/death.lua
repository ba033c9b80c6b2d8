-- Count that a process ended while it held a message, and tell what is to become of that: 'ready';
-- 'quarantined', to be delivered alone, since it was held too often when its process ended; 'dead', it
-- was alone with that process, and is a dead letter by now.
local function count_death(message, mark, most, worker_id, deliveries, dead, dead_at)
  local digest = redis.sha1hex(message)
  local reclaimed, crashed, requeued = read_deliveries(redis.call('HGET', deliveries, digest))
  reclaimed = reclaimed + 1
  if most > 0 and reclaimed > most and mark == '!' then
    redis.call('HDEL', deliveries, digest)
    forget_tracked(LEASED_INDEX, message)
    add_dead_letter(dead, dead_at, read_label(message) or digest, to_ms(now_us()), 0,
      string.format('its worker died %d times, the last time with nothing else', reclaimed), message,
      string.format('{"worker": "%s", "deliveries": %d}', worker_id, reclaimed + crashed + requeued))
    return 'dead'
  end
  track_back(message)
  write_deliveries(deliveries, digest, reclaimed, crashed, requeued)
  return most > 0 and reclaimed >= most and 'quarantined' or 'ready'
end
