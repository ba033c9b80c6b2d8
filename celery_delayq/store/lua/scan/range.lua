-- Tell a part of a stretch of the schedule, all in one string: clients read a thousand short replies
-- far more slowly than a long one. A stretch goes by the schedule from one place in the order of
-- (score, name) to another, or by the index by task from one member to another.
--
-- KEYS     1 due  2 entries  3 tasks
-- ARGV     1 '1' to go by task  2 first and  3 last score, or members, as Redis takes a range of
--          them  4 score of the last one before the stretch, '' for none  5 its name  6 score of the
--          last one in the stretch, '' for none  7 its name  8 most entries; it stops at 1 MB
-- Returns  {'1' when there is more, score and name of the last one looked at, or by task '' and its
--          member, for each entry 'length of its name, length of its record, its score', joined by
--          spaces, all names and records joined}
-- Repeat   reads only
-- @include record
-- @include room

local limit = tonumber(ARGV[8])

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

-- The first rank at which an entry stands behind a place, which may be empty meanwhile.
local function rank_behind(score, name)
  local from = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. score)
  local to = redis.call('ZCOUNT', KEYS[1], '-inf', score)
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

-- Names and scores of up to so many entries, and a member of the index for each if there is one.
local function by_due(number)
  local first, last = ARGV[2], ARGV[3]
  local from = first == '-inf' and 0 or redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. first)
  if ARGV[4] ~= '' then
    from = math.max(from, rank_behind(ARGV[4], ARGV[5]))
  end
  local to = redis.call('ZCOUNT', KEYS[1], '-inf', last)
  if ARGV[6] ~= '' then
    to = math.min(to, rank_behind(ARGV[6], ARGV[7]))
  end
  to = math.min(to, from + number) - 1
  return from <= to and redis.call('ZRANGE', KEYS[1], from, to, 'WITHSCORES') or {}
end

local function by_task(number)
  local found = {}
  local members = redis.call(
    'ZRANGEBYLEX', KEYS[3], ARGV[2], ARGV[3], 'LIMIT', 0, number)
  for _, member in ipairs(members) do
    local due, name = string.match(member, '^[^%z]*%z(%d+)%z(.*)$')
    local score = name and redis.call('ZSCORE', KEYS[1], name)
    found[#found + 1] = name or ''
    found[#found + 1] = tonumber(score or 0) >= PAUSED_OFFSET and string.format('%.0f', due + PAUSED_OFFSET)
      or due or '0'
  end
  return found, members
end

local found, members = (ARGV[1] == '1' and by_task or by_due)(limit + 1)

local more, last, name = '0', '', ''
local sizes, parts = {}, {}
local i = 1
while i <= #found and more == '0' do
  if room <= 0 then
    more = '1'
    break
  end
  local names, before = {}, (i - 1) / 2
  local number = few(#found / 2 - before)
  for k = i, i + 2 * number - 2, 2 do
    names[#names + 1] = found[k]
  end
  local bytes, records = 0, redis.call('HMGET', KEYS[2], unpack(names))
  for k = 1, #names do
    local place = before + k
    if place > limit then
      more = '1'
      break
    end
    local data = records[k]
    last, name = found[2 * place], names[k]
    if members then
      last, name = '', members[place]
    end
    if data then
      sizes[#sizes + 1] = #names[k] .. ' ' .. #data .. ' ' .. found[2 * place]
      parts[#parts + 1] = names[k]
      parts[#parts + 1] = data
      bytes = bytes + #data
    end
  end
  take_read(#names, bytes)
  i = i + 2 * number
end
return {more, last, name, table.concat(sizes, ' '), table.concat(parts)}
