-- Lease time: Redis' clock in ms, less the time for which it stood still. It stands still while
-- nobody looks at it (an outage, a failover) and over jumps of the clock, so that no lease ends
-- only because its holder could not be heard.
--
-- 'patience' is the longest time (ms) since the last look after which time has not stood still.
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

-- Extend the lease of an incarnation, and make sure that someone looks when it has ended.
local function hold_lease(leases, reaping, queue, incarnation, ends)
  redis.call('ZADD', leases, ends, incarnation)
  redis.call('ZADD', reaping, 'LT', ends, queue)
end

-- What stands in the hash of an incarnation: "<priority step>[!]\n" and the message; '!' when it
-- was delivered alone. Empty once a retry has replaced it. Returns step, mark, start of message;
-- nil when it is empty or unreadable.
local function read_leased(held)
  return string.match(held or '', '^(%d+)(!?)\n()')
end

-- How often a message was delivered in vain: "<reaped> <crashed> <requeued>", by the SHA1 of its
-- bytes, which are never rewritten.
local function read_deliveries(text)
  local reaped, crashed, requeued = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(reaped or 0), tonumber(crashed or 0), tonumber(requeued or 0)
end

local function write_deliveries(deliveries, digest, reaped, crashed, requeued)
  redis.call('HSET', deliveries, digest, string.format('%d %d %d', reaped, crashed, requeued))
end
