-- Tell how much is in each state in one queue, at one moment.
--
-- KEYS     1 due  2 dead  3… lists of what is ready
-- ARGV     –
-- Returns  {now (ms), scheduled, overdue, due of the first (ms) or '', dead, ready}
-- Repeat   reads only
-- @include clock

local now = to_ms(now_us())
local ready = 0
for i = 3, #KEYS do
  ready = ready + redis.call('LLEN', KEYS[i])
end
return {
  now,
  redis.call('ZCARD', KEYS[1]),
  redis.call('ZCOUNT', KEYS[1], '-inf', now),
  redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or '',
  redis.call('HLEN', KEYS[2]),
  ready,
}
