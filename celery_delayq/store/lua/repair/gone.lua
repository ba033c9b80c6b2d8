-- Check messages that LEASED_INDEX lists and that the caller has not found. A message is gone
-- unless it has moved meanwhile: the script reads all leased messages at one moment.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals
--          leased_of_workers…: leased of each process
-- ARGV     repair: '1' to repair
--          most_bytes
--          messages…: for each: its name, its value in the index
-- Returns  {0, looked at, {}, then {kind, found, repaired, some names…}}; {1, 0, {}} if the
--          messages have more than most_bytes
-- Repeat   finds what is left
-- Roles    operator
-- @include types
-- @include byte_limit
-- @include scan
-- @include record
-- @include tracking
-- @include leases/lease
-- @include repair/report

-- A message is gone only if no process has it, so one call must read all leased messages. The call
-- may read more bytes than other calls.
local repair = ARGV.repair == '1'
bytes_left = tonumber(ARGV.most_bytes)
expect_state()
expect_all(FIRST.leased_of_workers, 'hash')

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
  until cursor == '0' or bytes_left <= 0
end

local unchanged = {}
for i = FIRST.messages, #ARGV, 2 do
  if redis.call('HGET', LEASED_INDEX, ARGV[i]) == ARGV[i + 1] then
    unchanged[#unchanged + 1] = i
  end
end
if #unchanged > 0 then
  for i = FIRST.leased_of_workers, #KEYS do
    read_hash(KEYS[i])
  end
  if bytes_left <= 0 then
    return report('1', 0)
  end
end
for _, i in ipairs(unchanged) do
  local name = ARGV[i]
  local id = string.match(name, '^[^%z]*')
  local _, message_id, _, unique = read_tracked(ARGV[i + 1])
  if not there[duplicate_name(id, message_id or '')] then
    note_drift('gone_running', name, repair)
    if repair then
      redis.call('HDEL', LEASED_INDEX, name)
      redis.call('ZREM', DUPLICATE_IDS, name)
      release_key(unique or '-', id, message_id)
    end
  end
end
return report('0', (#ARGV - FIRST.messages + 1) / 2)
