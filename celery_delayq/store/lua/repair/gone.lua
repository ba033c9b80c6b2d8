-- Check messages that the index calls ready, or held, and that the caller has not found there. They
-- are gone, unless they have moved meanwhile: the script reads all places at one moment.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 waiting  8 running
--          9… ready lists and quarantined, or leased of each process
-- ARGV     1 'waiting' or 'running'  2 '1' to repair  3 most bytes to read  4… for each: its name,
--          its value in the index
-- Returns  {0, looked at, {}, then {kind, found, repaired, some names…}}; {1, 0, {}} if ARGV[3] bytes
--          are too few
-- Repeat   finds what is left
-- @include types
-- @include room
-- @include few
-- @include scan
-- @include record
-- @include label
-- @include tracking
-- @include lease
-- @include repair_report

-- A message is gone only if it is in none of these places, so one call must read them all. It has
-- more room than other calls.
room = tonumber(ARGV[3])
local is_held, repair = ARGV[1] == 'running', ARGV[2] == '1'
local index = is_held and RUNNING or WAITING
expect_state()
for i = 9, #KEYS do
  expect_type(KEYS[i], is_held and 'hash' or 'list')
end

local there = {}

local function note_there(item)
  local _, _, start = read_leased(item)
  local id, message_id = read_label(item, start or 1)
  if id then
    there[duplicate_name(id, message_id)] = true
  end
end

local function read_hash(key)
  local cursor = '0'
  repeat
    local page
    cursor, page = scan_hash(key, cursor, 100)
    for i = 2, #page, 2 do
      note_there(page[i])
    end
  until cursor == '0' or room <= 0
end

local function read_list(key)
  local start = 0
  repeat
    local number = few(10)
    local items = redis.call('LRANGE', key, start, start + number - 1)
    start = start + number
    local bytes = 0
    for _, item in ipairs(items) do
      bytes = bytes + #item
      note_there(item)
    end
    take_read(#items, bytes)
  until #items < number or room <= 0
end

local unchanged = {}
for i = 4, #ARGV, 2 do
  if redis.call('HGET', index, ARGV[i]) == ARGV[i + 1] then
    unchanged[#unchanged + 1] = i
  end
end
if #unchanged > 0 then
  for i = 9, #KEYS do
    (is_held and read_hash or read_list)(KEYS[i])
  end
  if room <= 0 then
    return tell('1', 0)
  end
end
for _, i in ipairs(unchanged) do
  local name = ARGV[i]
  local id = string.match(name, '^[^%z]*')
  local _, message_id, _, unique = read_tracked(ARGV[i + 1])
  if not there[duplicate_name(id, message_id or '')] then
    note(is_held and 'gone_running' or 'gone_waiting', name, repair)
    if repair then
      redis.call('HDEL', index, name)
      redis.call('ZREM', DUPLICATE_IDS, name)
      release_key(unique or '-', id, message_id)
    end
  end
end
return tell('0', (#ARGV - 3) / 2)
