-- Turn a ready list around once, and leave out messages that were cancelled. Stock workers take from it
-- later, and no one meanwhile.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 ready list  11 turning
-- ARGV     1 how many messages are left to look at, as the call before has returned; '' at first
--          2 how many of them to look at  3… for each cancelled one: its place, from 1, counted from
--          where workers take messages, its name in READY_INDEX, what stands there, the message
-- Returns  how many are left to look at
-- Repeat   nothing happens: others are left by then
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include repair/forget_cancelled

expect_state()
expect_type(KEYS[10], 'list')
local left = tonumber(redis.call('GET', KEYS[11]) or redis.call('LLEN', KEYS[10]))
if left ~= tonumber(ARGV[1]) then
  if left > 0 then
    redis.call('SET', KEYS[11], left)
  end
  return left
end
local place_of = {}
for i = 3, #ARGV, 4 do
  place_of[tonumber(ARGV[i])] = i
end
for place = 1, tonumber(ARGV[2]) do
  local message = redis.call('RPOP', KEYS[10])
  local i = place_of[place]
  if not message then
    left = 0
    break
  elseif i and ARGV[i + 3] ~= message then
    redis.call('RPUSH', KEYS[10], message)
    break
  elseif i and redis.call('HGET', READY_INDEX, ARGV[i + 1]) == ARGV[i + 2] then
    forget_cancelled(ARGV[i + 1], ARGV[i + 2], 1)
  else
    redis.call('LPUSH', KEYS[10], message)
  end
  left = left - 1
end
if left > 0 then
  redis.call('SET', KEYS[11], left)
else
  redis.call('DEL', KEYS[11])
end
return left
