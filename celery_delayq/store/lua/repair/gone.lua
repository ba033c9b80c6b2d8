-- Check messages that count as running and that the caller has not found. They are gone, unless
-- they have moved meanwhile: the script reads all that processes hold at one moment.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10… leased of each process
-- ARGV     1 '1' to repair  2 most bytes to read  3… for each: its name, its value in the index
-- Returns  {0, looked at, {}, then {kind, found, repaired, some names…}}; {1, 0, {}} if ARGV[2] bytes
--          are too few
-- Repeat   finds what is left
-- @include types
-- @include room
-- @include scan
-- @include record
-- @include tracking
-- @include lease
-- @include repair/report

-- A message is gone only if it is in none of these places, so one call must read them all. It has
-- more room than other calls.
local repair = ARGV[1] == '1'
room = tonumber(ARGV[2])
expect_state()
expect_all(10, 'hash')

local there = {}

local function read_hash(key)
  local cursor = '0'
  repeat
    local page
    cursor, page = scan_hash(key, cursor, 100)
    for i = 2, #page, 2 do
      local _, _, start = read_leased(page[i])
      local id, message_id = read_label(page[i], start or 1)
      if id then
        there[duplicate_name(id, message_id)] = true
      end
    end
  until cursor == '0' or room <= 0
end

local unchanged = {}
for i = 3, #ARGV, 2 do
  if redis.call('HGET', LEASED_INDEX, ARGV[i]) == ARGV[i + 1] then
    unchanged[#unchanged + 1] = i
  end
end
if #unchanged > 0 then
  for i = 10, #KEYS do
    read_hash(KEYS[i])
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
    note('gone_running', name, repair)
    if repair then
      redis.call('HDEL', LEASED_INDEX, name)
      redis.call('ZREM', DUPLICATE_IDS, name)
      release_key(unique or '-', id, message_id)
    end
  end
end
return tell('0', (#ARGV - 2) / 2)
