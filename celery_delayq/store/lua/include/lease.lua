-- Lease time: Redis' clock in ms, less the time for which it stood still. It stands still while
-- nobody looks at it (an outage, a failover) and over jumps of the clock, so that no lease ends
-- only because its holder could not be heard.
--
-- 'patience' is the longest time (ms) since the last manage which time has not stood still.
local function lease_now(clock, patience)
  local now = to_ms(now_us())
  local seen, stood = unpack(redis.call('HMGET', clock, 'seen', 'stood'))
  seen = tonumber(seen) or now
  local gap = now - seen
  if gap < 0 or gap > tonumber(patience) then
    gap = 0
  end
  return seen + gap - (tonumber(stood) or 0)
end

-- Extend the lease of a worker id, and make sure that someone looks when it has ended.
local function hold_lease(leases, lease_ends, queue, worker_id, ends)
  redis.call('ZADD', leases, ends, worker_id)
  redis.call('ZADD', lease_ends, 'LT', ends, queue)
end

-- What stands in the hash of a worker id: "<priority step>[!]\n" and the message; '!' when it
-- was delivered alone. Empty once a retry has replaced it. Returns step, mark, start of message;
-- nil when it is empty or unreadable.
local function read_leased(held)
  return string.match(held or '', '^(%d+)(!?)\n()')
end

-- How often a message was delivered in vain: "<reclaimed> <crashed> <requeued>", by the SHA1 of its
-- bytes, which are never rewritten.
local function read_deliveries(text)
  local reclaimed, crashed, requeued = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(reclaimed or 0), tonumber(crashed or 0), tonumber(requeued or 0)
end

local function write_deliveries(deliveries, digest, reclaimed, crashed, requeued)
  redis.call('HSET', deliveries, digest, string.format('%d %d %d', reclaimed, crashed, requeued))
end
