-- Look at a batch of what is ready, or of what a process holds: what has a label must be found by
-- its id. Mending tells what the label does.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running  9 leased,
--          or one of the lists of what is ready
-- ARGV     1 whose KEYS[9] is, '' when it is a list  2 cursor  3 about how many to look at
--          4 '1' to mend
-- Returns  {next cursor, looked at, {id NUL nonce of each that has a label}, then {kind, found,
--          mended, some ids…}}
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

local incarnation, from, most, mend = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
expect_state()
local items, cursor = {}, '0'
if incarnation == '' then
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
if incarnation ~= '' then
  index, kind, rest = RUNNING, 'untracked_held', ' ' .. incarnation
end
local there = {}
for _, item in ipairs(items) do
  local _, _, start = read_leased(item)
  local id, nonce, _, unique = read_label(item, start or 1)
  if id then
    there[#there + 1] = twin_name(id, nonce)
    if not find_tracked(index, id, nonce) then
      note(kind, id, mend)
      if mend then
        let_pass()
        track(index, id, nonce, tracking(0, unique, '') .. rest)
      end
    end
  end
end
return {cursor, #items, there, unpack(found)}
