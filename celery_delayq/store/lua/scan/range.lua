-- Return entries that stand side by side in the schedule or in the index by task, in one string:
-- clients read a long reply far faster than a thousand short ones.
--
-- The schedule is ordered by (score, name): what is paused and due comes last. The index is ordered
-- by (due, name) within a task. The ranges are read one after the other. Of records about 1 MB is
-- read.
--
-- KEYS     1 due  2 entries  3 tasks
-- ARGV     1 '1' for the index by task  2 score of the last entry before the first one, '' for
--          none  3 its name  4 score of the last entry to return, '' for no end  5 its name  6 most
--          entries to return  7 most entries to look at  8 priority step of the entries, '' for any
--          9 '1' for the records too  10… first and last score of each range, or members, as Redis
--          takes a range of them; of the index there is one range, with '' and a member for 2 to 5
-- Returns  {'1' when there is more, score and name of the last entry looked at, or '' and its
--          member of the index, the lengths of the name, the record (-1 for none) and the score of
--          each entry, joined by spaces, all of these joined}
-- Repeat   reads only
-- @include record
-- @include room
-- @include ranks

local limit, most, step = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local with_records = ARGV[9] == '1'

-- Add names and scores of the next entries between two scores to 'found', up to a number of them.
local function add_by_due(found, first, last, number)
  local from = first == '-inf' and 0 or redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. first)
  if ARGV[2] ~= '' then
    from = math.max(from, rank_behind(KEYS[1], ARGV[2], ARGV[3]))
  end
  local to = redis.call('ZCOUNT', KEYS[1], '-inf', last)
  if ARGV[4] ~= '' then
    to = math.min(to, rank_behind(KEYS[1], ARGV[4], ARGV[5]))
  end
  to = math.min(to, from + number - #found / 2) - 1
  for _, one in ipairs(from <= to and redis.call('ZRANGE', KEYS[1], from, to, 'WITHSCORES') or {}) do
    found[#found + 1] = one
  end
end

local function by_due(number)
  local found = {}
  for i = 10, #ARGV, 2 do
    add_by_due(found, ARGV[i], ARGV[i + 1], number)
  end
  return found
end

-- The same from the index by task, and the member of each: what is paused and due has its place by due.
local function by_task(number)
  local found = {}
  local first, last = select(10, unpack(ARGV))
  first = ARGV[3] ~= '' and '(' .. ARGV[3] or first
  last = ARGV[5] ~= '' and '[' .. ARGV[5] or last
  local members = redis.call('ZRANGEBYLEX', KEYS[3], first, last, 'LIMIT', 0, number)
  for _, member in ipairs(members) do
    local due, name = string.match(member, '^[^%z]*%z(%d+)%z(.*)$')
    local score = name and redis.call('ZSCORE', KEYS[1], name)
    found[#found + 1] = name or ''
    found[#found + 1] = tonumber(score or 0) >= PAUSED_OFFSET and string.format('%.0f', due + PAUSED_OFFSET)
      or due or '0'
  end
  return found, members
end

local found, members = (ARGV[1] == '1' and by_task or by_due)(most + 1)

local more, last, name = '0', '', ''
local sizes, parts, number = {}, {}, 0
local place, total = 0, #found / 2
while place < total and more == '0' do
  if room <= 0 then
    more = '1'
    break
  end
  local names = {}
  for k = place + 1, place + few(total - place) do
    names[#names + 1] = found[2 * k - 1]
  end
  local records, bytes = {}, 0
  if with_records or step ~= '' then
    records = redis.call('HMGET', KEYS[2], unpack(names))
  end
  for k, one in ipairs(names) do
    if number == limit or place == most then
      more = '1'
      break
    end
    place = place + 1
    local data, score = records[k] or '', found[2 * place]
    bytes = bytes + #data
    last, name = members and '' or score, members and members[place] or one
    if step == '' or read_record(data) == step then
      number = number + 1
      sizes[number] = #one .. ' ' .. (with_records and records[k] and #data or -1) .. ' ' .. #score
      parts[number] = one .. (with_records and data or '') .. score
    end
  end
  take_read(#names, bytes)
end
return {more, last, name, table.concat(sizes, ' '), table.concat(parts)}
