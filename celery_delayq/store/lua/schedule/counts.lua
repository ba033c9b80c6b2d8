-- Tell how much is in each state in one queue, at one moment.
--
-- KEYS     1 due  2 dead  3 paused_due  4… ready lists and quarantined
-- ARGV     –
-- Returns  {now (ms), scheduled, overdue, due of the first (ms) or '', dead, ready, paused_due}; what is
--          paused and due is scheduled too, but neither overdue nor the first
-- Repeat   reads only
-- @include clock
-- @include record

local now = to_ms(now_us())
local ready = 0
for i = 4, #KEYS do
  ready = ready + redis.call('LLEN', KEYS[i])
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
return {
  now,
  redis.call('ZCARD', KEYS[1]),
  redis.call('ZCOUNT', KEYS[1], '-inf', now),
  first and tonumber(first) < PAUSED_OFFSET and first or '',
  redis.call('HLEN', KEYS[2]),
  ready,
  redis.call('ZCARD', KEYS[3]),
}
