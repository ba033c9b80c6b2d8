-- Tell which queue to look at next, and when; let lease time pass, and tell where a lease ended. Where
-- nothing is due, note that too: dispatchers are up to date.
--
-- KEYS     1 next_due  2 lease_ends  3 clock
-- ARGV     1 longest time since the last look (ms): after a longer one, and when the clock was set
--          back, lease time has stood still
-- Returns  {now (µs), queue or '', due (ms) or '', some of the queues with an ended lease…}
-- Repeat   the same
-- @include clock
-- @include dispatch/next_due
-- @include lease

local now = now_us()
local ms = to_ms(now)
local reply = next_due_head(KEYS[1], now)
local seen = tonumber(redis.call('HGET', KEYS[3], 'seen')) or ms
-- A full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[2], '')
if ms < seen or ms - seen > tonumber(ARGV[1]) then
  redis.call('HINCRBY', KEYS[3], 'stood', string.format('%.0f', ms - seen))
end
local seen_now = string.format('%.0f', ms)
if reply[3] == '' or tonumber(reply[3]) > ms then
  redis.call('HSET', KEYS[3], 'seen', seen_now, 'dispatched', seen_now)
else
  redis.call('HSET', KEYS[3], 'seen', seen_now)
end
local ended = redis.call(
  'ZRANGEBYSCORE', KEYS[2], '-inf', lease_now(KEYS[3], ARGV[1]), 'LIMIT', 0, 100)
for _, queue in ipairs(ended) do
  reply[#reply + 1] = queue
end
return reply
