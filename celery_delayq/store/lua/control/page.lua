-- Tell a page of the schedule in order of due, what is paused and due last.
--
-- By queue it goes through the schedule, by task through the index. Where a page is to hold
-- entries of one priority only, ten times as many are looked at, but 1,000 at most or the page. Of
-- records, about 1 MB are read.
--
-- KEYS     1 due  2 entries  3 tasks
-- ARGV     1 task, '' for all  2 first due (ms), '' for any  3 last due (ms), '' for any  4 priority
--          step, '' for any  5 most entries  6 score of the last one before this page, '' for none
--          7 its name  8 '1' for the records too
-- Returns  {'1' when there is more, score and name of the last one looked at or '' and '', then for
--          each entry its name, its score, and its record or ''}
-- Repeat   reads only
-- @include record
-- @include room

local task, step, limit = ARGV[1], ARGV[4], tonumber(ARGV[5])
local low, high = tonumber(ARGV[2]) or -PAUSED_OFFSET, tonumber(ARGV[3])
local after, after_name = tonumber(ARGV[6]), ARGV[7]
local budget = step == '' and limit or math.max(limit, math.min(10 * limit, 1000))

-- Redis orders by bytes, Lua by the rules of a language.
local function is_behind(one, other)
  for i = 1, #one do
    local byte, its = string.byte(one, i), string.byte(other, i)
    if byte ~= its then
      return not its or byte > its
    end
  end
  return false
end

-- The first rank at which an entry stands behind the last page: it may be gone meanwhile.
local function rank_behind(score, name)
  local from = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. string.format('%.0f', score))
  local to = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', score))
  while from < to do
    local middle = math.floor((from + to) / 2)
    if is_behind(redis.call('ZRANGE', KEYS[1], middle, middle)[1], name) then
      to = middle
    else
      from = middle + 1
    end
  end
  return from
end

-- Names and scores of the next entries of a range of scores.
local function by_due(first, last, number)
  local from = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. string.format('%.0f', first))
  if after and after >= first then
    from = math.max(from, rank_behind(after, after_name))
  end
  local to = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', last)) - 1
  to = math.min(to, from + number - 1)
  return from <= to and redis.call('ZRANGE', KEYS[1], from, to, 'WITHSCORES') or {}
end

-- The same from the index by task, where what is paused and due has its place by due.
local function by_task(number)
  local from = '[' .. task .. '\0' .. string.format('%015.0f', math.max(low, 0))
  if after then
    from = '(' .. task_member(task, due_at(after), after_name)
  end
  local to = '(' .. task .. (high and '\0' .. string.format('%015.0f', high + 1) or '\1')
  local found = {}
  for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], from, to, 'LIMIT', 0, number)) do
    local due, name = string.match(member, '^[^%z]*%z(%d+)%z(.*)$')
    local score = tonumber(redis.call('ZSCORE', KEYS[1], name) or 0)
    found[#found + 1] = name
    found[#found + 1] = string.format('%.0f', score >= PAUSED_OFFSET and due + PAUSED_OFFSET or due)
  end
  return found
end

local found
if task ~= '' then
  found = by_task(budget + 1)
else
  found = by_due(low, high or PAUSED_OFFSET - 1, budget + 1)
  if #found < 2 * (budget + 1) then
    local rest = budget + 1 - #found / 2
    for _, one in ipairs(by_due(math.max(low, 0) + PAUSED_OFFSET, (high or PAUSED_OFFSET) + PAUSED_OFFSET, rest)) do
      found[#found + 1] = one
    end
  end
end

local reply = {'0', '', ''}
local number = 0
for i = 1, #found, 2 do
  if number == limit or i > 2 * budget or room <= 0 then
    reply[1] = '1'
    break
  end
  local name, score = found[i], found[i + 1]
  local data = (step ~= '' or ARGV[8] == '1') and redis.call('HGET', KEYS[2], name) or ''
  take_room(#data)
  reply[2], reply[3] = score, name
  if step == '' or read_record(data) == step then
    number = number + 1
    reply[#reply + 1] = name
    reply[#reply + 1] = score
    reply[#reply + 1] = ARGV[8] == '1' and data or ''
  end
end
return reply
