-- Make the tasks of dead letters ready again, the first that died first, as far as that can be done
-- without reading their messages; returns the others. In one step one is ready and dead no more.
--
-- KEYS     1 wake  2 dead  3 dead_at  4 answer  5… ready lists, from that of the lowest step on
-- ARGV     1 died at this time or later (ms or -inf)  2 or earlier (ms)  3 most dead letters
--          4 32 characters for delivery tags, of which the first four are counted  5 how many steps
--          there are  6… the steps, from the lowest one; then ids that died at the first time
--          and were returned already
-- Returns  '<1 when there is more> <when the last one died (ms)> <how many are ready>', for each
--          that is not ' <length of its id> <when it died>', a newline, and all their ids joined
-- Repeat   the same answer, for a minute
-- @include types
-- @include room
-- @include wake
-- @include idempotent_reply
-- @include replay_edit

local before = answered(KEYS[4])
if before then
  return before
end
expect_type(KEYS[2], 'hash')
expect_type(KEYS[3], 'zset')
for i = 5, #KEYS do
  expect_type(KEYS[i], 'list')
end
-- One takes the place of the other, so a full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[3], '')

local steps = tonumber(ARGV[5])
local function list_of(priority)
  local list = KEYS[5]
  for i = 1, steps do
    if tonumber(ARGV[5 + i]) <= priority then
      list = KEYS[4 + i]
    end
  end
  return list
end

local told = {}
for i = 6 + steps, #ARGV do
  told[ARGV[i]] = true
end
local number = tonumber(ARGV[3]) + #ARGV - 5 - steps
local found = redis.call(
  'ZRANGEBYSCORE', KEYS[3], ARGV[1], ARGV[2], 'WITHSCORES', 'LIMIT', 0, number)

local more = #found == 2 * number and '1 ' or '0 '
local replayed_in_place, sizes, left, last = {}, {}, {}, ARGV[1]
local ready, tail = {}, string.sub(ARGV[4], 5)
for i = 1, #found, 2 do
  local id = found[i]
  if room <= 0 then
    more = '1 '
    break
  elseif not told[id] then
    last = found[i + 1]
    local dead_letter = redis.call('HGET', KEYS[2], id) or ''
    take_room(#dead_letter)
    local message, priority = edit_for_replay(dead_letter, string.format('%04x', i) .. tail)
    if message then
      local list = list_of(priority)
      ready[list] = ready[list] or {}
      table.insert(ready[list], message)
      replayed_in_place[#replayed_in_place + 1] = id
    else
      sizes[#sizes + 1] = ' ' .. #id .. ' ' .. last
      left[#left + 1] = id
    end
  end
end
if #replayed_in_place > 0 then
  -- Listed before they are forgotten: nothing is ever nowhere.
  for list, messages in pairs(ready) do
    redis.call('LPUSH', list, unpack(messages))
  end
  wake(KEYS[1])
  redis.call('HDEL', KEYS[2], unpack(replayed_in_place))
  redis.call('ZREM', KEYS[3], unpack(replayed_in_place))
end
return answer(
  KEYS[4], more .. last .. ' ' .. #replayed_in_place .. table.concat(sizes) .. '\n' .. table.concat(left))
