-- Move what is due to the ready lists, earliest first, at most a batch of it.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 dead  6 dead_at  7 wake  8… ready lists
-- ARGV     1 queue  2 most entries to move  3… the priority step of KEYS[8…]
-- Returns  {now (µs), queue and due (ms) of what to look at next, moved, buried}
-- Repeat   goes on with what is due then
-- @include clock
-- @include types
-- @include record
-- @include agenda
-- @include bury
-- @include wake

local queue = ARGV[1]
local clock = now_us()
local now = to_ms(clock)
local due = redis.call(
  'ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[2]))
local ids, scores = {}, {}
for i = 1, #due, 2 do
  ids[#ids + 1] = due[i]
  scores[#scores + 1] = tonumber(due[i + 1])
end

local list_of = {}
for i = 3, #ARGV do
  list_of[ARGV[i]] = KEYS[i + 5]
end

local messages, members, bad = {}, {}, {}
local moved = 0
if #ids > 0 then
  expect_type(KEYS[5], 'hash')
  expect_type(KEYS[6], 'zset')
  local records = redis.call('HMGET', KEYS[2], unpack(ids))
  for i, id in ipairs(ids) do
    local priority, _, task, start = read_record(records[i])
    if priority then
      local list = list_of[priority] or KEYS[8]
      if not messages[list] then
        expect_type(list, 'list')
        messages[list] = {}
      end
      table.insert(messages[list], string.sub(records[i], start))
      table.insert(members, task_member(task, scores[i], id))
      moved = moved + 1
    else
      table.insert(bad, i)
    end
  end

  -- Moving frees memory, so it must go on when the server is full: a write that is never
  -- refused, and changes nothing, comes first, and the server lets those after it pass.
  redis.call('ZREM', KEYS[4], '')
  for list, batch in pairs(messages) do
    redis.call('LPUSH', list, unpack(batch))
  end
  if moved > 0 then
    wake(KEYS[7])
  end
  for _, i in ipairs(bad) do
    local reason = records[i] and 'unreadable record' or 'no record'
    bury_letter(KEYS[5], KEYS[6], ids[i], now, scores[i], reason, records[i] or '')
  end
  redis.call('ZREM', KEYS[1], unpack(ids))
  redis.call('HDEL', KEYS[2], unpack(ids))
  if #members > 0 then
    redis.call('ZREM', KEYS[3], unpack(members))
  end
end

look_again(KEYS[4], queue, KEYS[1])
local reply = agenda_head(KEYS[4], clock)
reply[4], reply[5] = moved, #bad
return reply
