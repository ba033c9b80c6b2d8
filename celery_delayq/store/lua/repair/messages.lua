-- Look at a batch of what is ready, or of what a process holds: what has a label must be found by
-- its id. Repairing tells what the label does.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 waiting  8 running  9 leased,
--          or one of the lists of what is ready
-- ARGV     1 whose KEYS[9] is, '' when it is a list  2 cursor  3 about how many to look at
--          4 '1' to repair
-- Returns  {next cursor, looked at, {id NUL message_id of each that has a label}, then {kind, found,
--          repaired, some ids…}}
-- Repeat   finds what is left
-- @include types
-- @include room
-- @include few
-- @include scan
-- @include label
-- @include tracking
-- @include lease
-- @include repair_report
-- @include repair_state

local worker_id, from, most, repair = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
expect_state()
local items, cursor = {}, '0'
if worker_id == '' then
  expect_type(KEYS[9], 'list')
  -- Others take from the right, so none is passed over.
  repeat
    local number = few(most - #items)
    local page = redis.call('LRANGE', KEYS[9], from + #items, from + #items + number - 1)
    local bytes = 0
    for _, item in ipairs(page) do
      items[#items + 1] = item
      bytes = bytes + #item
    end
    take_read(#page, bytes)
    cursor = #page == number and string.format('%.0f', from + #items) or '0'
  until cursor == '0' or #items == most or room <= 0
else
  expect_type(KEYS[9], 'hash')
  local page
  cursor, page = scan_hash(KEYS[9], from, most)
  for i = 2, #page, 2 do
    items[#items + 1] = page[i]
  end
end

local index, kind, rest = WAITING, 'untracked_ready', ''
if worker_id ~= '' then
  index, kind, rest = RUNNING, 'untracked_held', ' ' .. worker_id
end
local there = {}
for _, item in ipairs(items) do
  local _, _, start = read_leased(item)
  local id, message_id, _, unique = read_label(item, start or 1)
  if id then
    there[#there + 1] = duplicate_name(id, message_id)
    if not find_tracked(index, id, message_id) then
      note(kind, id, repair)
      if repair then
        let_pass()
        track(index, id, message_id, tracking(0, unique, '') .. rest)
      end
    end
  end
end
return {cursor, #items, there, unpack(found)}
