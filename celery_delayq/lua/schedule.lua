-- Store a message until it is due, or hand it out at once when that moment has passed.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 queues  6 ready list of its priority
-- ARGV     1 queue  2 id  3 due (ms)  4 '1' when due counts from now  5 record
--          6 layout of the queue  7 wake channel
-- Returns  {'scheduled' | 'ready' | 'repeated', due (ms since 1970)}
-- Repeat   the same record again is 'repeated' while its entry waits
-- @include clock
-- @include types
-- @include record
-- @include entry
-- @include agenda

local queue, id, due, data = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[5]
local now = now_ms()
if ARGV[4] == '1' then
  due = now + due
end
if due <= now then
  redis.call('LPUSH', KEYS[6], read_record(data).message)
  return {'ready', due}
end
if not put_entry(KEYS[1], KEYS[2], KEYS[3], id, due, data) then
  return {'repeated', due}
end
announce(KEYS[4], KEYS[5], queue, ARGV[6], due, now, ARGV[7])
return {'scheduled', due}
