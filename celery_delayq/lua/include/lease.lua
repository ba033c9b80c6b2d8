-- Lease time: Redis' clock in ms, less the time for which it stood still. It stands still while
-- nobody looks at it (an outage, a failover) and over jumps of the clock, so that no lease ends
-- only because its holder could not be heard.
local function lease_now(clock)
  return to_ms(now_us()) - tonumber(redis.call('HGET', clock, 'stood') or '0')
end

-- Extend the lease of an incarnation, and make sure that someone looks when it has ended.
local function hold_lease(leases, reaping, clock, queue, incarnation, lease)
  local ends = lease_now(clock) + tonumber(lease)
  redis.call('ZADD', leases, ends, incarnation)
  redis.call('ZADD', reaping, 'NX', ends, queue)
end

-- What stands in the hash of an incarnation: "<priority step>[!]\n" and the message; '!' when it
-- was delivered alone. Empty once a retry has replaced it. Returns step, mark, start of message.
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
