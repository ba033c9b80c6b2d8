-- Look at a batch of the names of second messages with the same id: each must belong to a message.
-- Repairing removes those that do not.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 waiting  8 running
-- ARGV     1 cursor  2 about how many to look at  3 '1' to repair  4… names left by an earlier call,
--          to look at instead
-- Returns  {next cursor, looked at, {names left}, then {kind, found, repaired,
--          some names…}}
-- Repeat   finds what is left
-- @include types
-- @include room
-- @include record
-- @include tracking
-- @include repair_report
-- @include repair_page

expect_state()
local repair = ARGV[3] == '1'

-- One that is found by its id alone at the moment may be a second one again.
local function is_there(name)
  if redis.call('HEXISTS', ENTRIES, name) == 1 then
    return true
  end
  local id, message_id = string.match(name, '^([^%z]*)%z(.*)$')
  if not id then
    return false
  end
  local data = redis.call('HGET', ENTRIES, id)
  take_room(data and #data or 0)
  local _, first = read_record(data)
  return first == message_id or find_tracked(WAITING, id, message_id) or find_tracked(RUNNING, id, message_id)
end

local page = {ARGV[1], {select(4, unpack(ARGV))}}
if #page[2] == 0 then
  page = names_in(redis.call('ZSCAN', DUPLICATE_IDS, ARGV[1], 'COUNT', ARGV[2]))
end
return look_at_each(page, function(name)
  if not is_there(name) then
    note('idle_duplicate', name, repair)
    if repair then
      redis.call('ZREM', DUPLICATE_IDS, name)
    end
  end
end)
