-- Rotate a ready list once, and drop cancelled messages. No worker takes from the list meanwhile;
-- stock workers take from it later.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  ready_list  turning
-- ARGV     messages_left: number of messages left to look at, as the earlier call has returned; ''
--            at first
--          page_size: how many of them to look at
--          cancelled…: for each cancelled message: its place from 1, counted from the end where
--            workers take messages, its name in READY_INDEX, its value there, the message
-- Returns  number of messages left to look at
-- Repeat   changes nothing: the number that is left is another one
-- Roles    operator
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include repair/forget_cancelled

expect_state()
expect_type(KEYS.ready_list, 'list')
local left = tonumber(redis.call('GET', KEYS.turning) or redis.call('LLEN', KEYS.ready_list))
if left ~= tonumber(ARGV.messages_left) then
  if left > 0 then
    redis.call('SET', KEYS.turning, left)
  end
  return left
end
local place_of = {}
for i = FIRST.cancelled, #ARGV, 4 do
  place_of[tonumber(ARGV[i])] = i
end
for place = 1, tonumber(ARGV.page_size) do
  local message = redis.call('RPOP', KEYS.ready_list)
  local i = place_of[place]
  if not message then
    left = 0
    break
  elseif i and ARGV[i + 3] ~= message then
    redis.call('RPUSH', KEYS.ready_list, message)
    break
  elseif i and redis.call('HGET', READY_INDEX, ARGV[i + 1]) == ARGV[i + 2] then
    forget_cancelled(ARGV[i + 1], ARGV[i + 2], 1)
  else
    redis.call('LPUSH', KEYS.ready_list, message)
  end
  left = left - 1
end
if left > 0 then
  redis.call('SET', KEYS.turning, left)
else
  redis.call('DEL', KEYS.turning)
end
return left
