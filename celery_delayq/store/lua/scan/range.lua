-- Return a range of entries from the schedule or from the index by task, in one string. Clients
-- read one long string far faster than a thousand short ones.
--
-- Entries come in the order of (due, name), also those that are paused and due. With began_us, an
-- entry that was moved since comes at its earlier due: see include/pages/reading.lua. The script
-- reads about 1 MB of records.
--
-- KEYS     due  entries  tasks  readers  moved  moved_before
-- ARGV     by_task: '1' for the index by task
--          after_due: due of the entry after which to begin, '' for none
--          after_name: its name
--          upto_due: due of the last entry to return, '' for no end
--          upto_name: its name
--          most_entries: most entries to return
--          most_looked: most entries to look at
--          step: priority step of the entries, '' for any
--          with_records: '1' for the records too
--          began_us: when the reading began (µs), '' to ignore moves
--          goes_on: '1' if the reading goes on even if this range has no more entries
--          moved_task: the task of moved entries, '' for any
--          moved_first: their first due, '' for no moved entries
--          moved_last: the last due of moved entries
--          ranges…: first and last score of each range, or members, as Redis expects them; the
--            index has one range, and in after_ and upto_ '' for the due and a member for the name
-- Returns  {'1' if there is more, due and name of the last entry looked at, or '' and its member of
--          the index, the lengths of name, record (-1 for none) and score of each entry, joined by
--          spaces, all of these texts joined, the last due on the first page, else ''}; a space and
--          the earlier due follow the score of a moved entry
-- Repeat   reads only, and notes that a reading goes on
-- Roles    worker, exporter
-- @include clock
-- @include record
-- @include byte_limit
-- @include ranks
-- @include pages/reading

local by_task, limit, most, step = ARGV.by_task == '1', tonumber(ARGV.most_entries),
  tonumber(ARGV.most_looked), ARGV.step
local with_records, began, goes_on = ARGV.with_records == '1', tonumber(ARGV.began_us),
  ARGV.goes_on == '1'
local moves = {KEYS.readers, KEYS.moved, KEYS.moved_before}
local with_moved = began and is_any_moved(moves)
if with_moved then
  -- A page may have many moved entries, and looking at their names is fast.
  most = math.max(most, 1000)
end

-- Due and name of an entry, from a due and a name, or from '' and a member of the index.
local function place_of(score, name)
  if by_task then
    local due, its = string.match(name, '^[^%z]*%z(%d+)%z(.*)$')
    return due and {tonumber(due), its}
  end
  return score ~= '' and {tonumber(score), name} or nil
end

local function is_behind(one, other)
  if one[1] ~= other[1] then
    return one[1] > other[1]
  end
  return is_before(other[2], one[2])
end

local after, upto = place_of(ARGV.after_due, ARGV.after_name),
  place_of(ARGV.upto_due, ARGV.upto_name)

-- The earliest place at which the look at a source has ended. Entries behind it may be incomplete.
local horizon

-- Merge the entries of one source into 'found', up to the number to look at.
local function add(found, others)
  if #others > most then
    others[#others] = nil
    local last = others[#others]
    if not horizon or is_behind(horizon, last) then
      horizon = last
    end
  end
  if #found == 0 or #others == 0 then
    return #found == 0 and others or found
  end
  local both, i, k = {}, 1, 1
  while found[i] or others[k] do
    if not others[k] or (found[i] and is_behind(others[k], found[i])) then
      both[#both + 1], i = found[i], i + 1
    else
      both[#both + 1], k = others[k], k + 1
    end
  end
  return both
end

local function offset_of(first)
  return string.sub(first, 1, 1) ~= '-' and tonumber(first) >= PAUSED_OFFSET and PAUSED_OFFSET or 0
end

-- Entries between two scores: {due, name, score, due and name as the place}. Returns one entry more
-- than the number to look at.
local function by_due(first, last)
  local offset = offset_of(first)
  local from = first == '-inf' and 0 or redis.call('ZCOUNT', KEYS.due, '-inf', '(' .. first)
  if after then
    from = math.max(from, rank_behind(KEYS.due, number_text(after[1] + offset), after[2]))
  end
  local to = redis.call('ZCOUNT', KEYS.due, '-inf', last)
  if upto then
    to = math.min(to, rank_behind(KEYS.due, number_text(upto[1] + offset), upto[2]))
  end
  to = math.min(to, from + most + 1) - 1
  local found = from <= to and redis.call('ZRANGE', KEYS.due, from, to, 'WITHSCORES') or {}
  local entries = {}
  for i = 1, #found, 2 do
    local score = found[i + 1]
    local due = offset == 0 and score or number_text(tonumber(score) - offset)
    entries[#entries + 1] = {tonumber(due), found[i], score, due, found[i]}
  end
  return entries
end

-- Entries of the index by task, in the form of by_due. An entry that is paused and due stands at
-- its due.
local function in_index(first, last)
  first = ARGV.after_name ~= '' and '(' .. ARGV.after_name or first
  last = ARGV.upto_name ~= '' and '[' .. ARGV.upto_name or last
  local members = redis.call('ZRANGEBYLEX', KEYS.tasks, first, last, 'LIMIT', 0, most + 1)
  local entries = {}
  for i, member in ipairs(members) do
    local due, name = string.match(member, '^[^%z]*%z(%d+)%z(.*)$')
    local score = name and redis.call('ZSCORE', KEYS.due, name)
    local is_paused = tonumber(score or 0) >= PAUSED_OFFSET
    score = is_paused and string.format('%.0f', due + PAUSED_OFFSET) or due or '0'
    entries[i] = {tonumber(due or 0), name or '', score, '', member}
  end
  return entries
end

-- Entries that were due between two dues when the reading began, and were moved since.
local function moved(key)
  local first, last = ARGV.moved_first, ARGV.moved_last
  local from = redis.call('ZCOUNT', key, '-inf', '(' .. first)
  if after then
    from = math.max(from, rank_behind(key, number_text(after[1]), behind_versions(after[2])))
  end
  local to = math.min(redis.call('ZCOUNT', key, '-inf', last), from + most + 1) - 1
  local found = from <= to and redis.call('ZRANGE', key, from, to, 'WITHSCORES') or {}
  local entries = {}
  for i = 1, #found, 2 do
    local name, its_task, is_valid = read_version(found[i], began)
    local due = found[i + 1]
    local score = is_valid and (ARGV.moved_task == '' or ARGV.moved_task == its_task)
      and redis.call('ZSCORE', KEYS.due, name)
    local one = {tonumber(due), name, score and score .. ' ' .. due, due, name}
    if by_task then
      one[4], one[5] = '', task_member(its_task, due, name)
    end
    one.is_hidden = not score
    if not upto or not is_behind(one, upto) then
      entries[#entries + 1] = one
    end
  end
  return entries
end

local found = {}
for i = FIRST.ranges, #ARGV, 2 do
  local entries = (by_task and in_index or by_due)(ARGV[i], ARGV[i + 1])
  if with_moved then
    hide_moved(moves, entries, began)
  end
  found = add(found, entries)
end
if with_moved and ARGV.moved_first ~= '' then
  found = add(found, moved(moves[2]))
  found = add(found, moved(moves[3]))
end

local more, last, name = '0', '', ''
local visible = {}
for _, one in ipairs(found) do
  if horizon and is_behind(one, horizon) then
    break
  end
  if not one.is_hidden then
    visible[#visible + 1] = one
  end
end
if horizon then
  more, last, name = '1', horizon[4], horizon[5]
end

local sizes, parts, number = {}, {}, 0
local place, total = 0, #visible
local is_full = false
while place < total and not is_full do
  if bytes_left <= 0 then
    is_full = true
    break
  end
  local names = {}
  for k = place + 1, place + count_to_read(total - place) do
    names[#names + 1] = visible[k][2]
  end
  local records, bytes = {}, 0
  if with_records or step ~= '' then
    records = redis.call('HMGET', KEYS.entries, unpack(names))
  end
  for k, one in ipairs(names) do
    if number == limit then
      is_full = true
      break
    end
    place = place + 1
    local data, score = records[k] or '', visible[place][3]
    bytes = bytes + #data
    if step == '' or read_record(data) == step then
      number = number + 1
      sizes[number] = #one .. ' ' .. (with_records and records[k] and #data or -1) .. ' ' .. #score
      parts[number] = one .. (with_records and data or '') .. score
    end
  end
  take_read(#names, bytes)
end
if is_full then
  more, last, name = '1', visible[place][4], visible[place][5]
end

-- The last due of all ranges. A reading ends there, even if entries are added behind it.
local function last_due()
  local due = with_moved and ARGV.moved_first ~= ''
    and last_version(moves, ARGV.moved_first, ARGV.moved_last) or nil
  for i = FIRST.ranges, #ARGV, 2 do
    local its
    if by_task then
      local place = place_of('', redis.call('ZREVRANGEBYLEX', KEYS.tasks, ARGV[i + 1], ARGV[i],
        'LIMIT', 0, 1)[1] or '')
      its = place and place[1]
    else
      its = redis.call('ZREVRANGEBYSCORE', KEYS.due, ARGV[i + 1], ARGV[i], 'WITHSCORES', 'LIMIT', 0,
        1)[2]
      its = its and tonumber(its) - offset_of(ARGV[i])
    end
    due = its and math.max(its, due or its) or due
  end
  return due and string.format('%.0f', math.ceil(due)) or ''
end

local highest = ''
if began then
  if not after and ARGV.after_name == '' then
    highest = last_due()
  end
  if more == '1' or not goes_on or #found > 0 then
    note_reader(moves, more == '1' or goes_on, ARGV.began_us)
  end
end
return {more, last, name, table.concat(sizes, ' '), table.concat(parts), highest}
