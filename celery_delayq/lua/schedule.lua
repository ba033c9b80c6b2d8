-- Store messages until they are due; those whose moment has passed go to ready at once.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 queues  6… ready lists
-- ARGV     1 queue  2 layout of the queue  3 wake channel  4… for each message: id, due (ms,
--          '+' before it when it counts from now), which of KEYS is its ready list, record
-- Returns  {'scheduled' | 'ready' | 'repeated', due (ms since 1970), …} for each message
-- Repeat   the same record again is 'repeated' while its entry waits
-- @include clock
-- @include types
-- @include record
-- @include entry
-- @include agenda

local clock = now_us()
local now = to_ms(clock)
expect_type(KEYS[1], 'zset')
expect_type(KEYS[2], 'hash')
expect_type(KEYS[3], 'zset')
for i = 6, #KEYS do
  expect_type(KEYS[i], 'list')
end

local reply = {}
local first
for i = 4, #ARGV, 4 do
  local id, due, list, data = ARGV[i], due_of(ARGV[i + 1], now), KEYS[tonumber(ARGV[i + 2])], ARGV[i + 3]
  local record = read_record(data)
  local state
  if due <= now then
    redis.call('LPUSH', list, record.message)
    state = 'ready'
  elseif put_entry(KEYS[1], KEYS[2], KEYS[3], id, due, data, record) then
    state = 'scheduled'
    first = math.min(first or due, due)
  else
    state = 'repeated'
  end
  reply[#reply + 1] = state
  reply[#reply + 1] = due
end
if first then
  announce(KEYS[4], KEYS[5], ARGV[1], ARGV[2], first, clock, ARGV[3])
end
return reply
