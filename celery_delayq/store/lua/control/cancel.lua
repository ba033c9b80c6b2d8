-- Cancel scheduled messages, and ready ones that no process holds yet.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 next_due  11 answer  12… ready lists and quarantined
-- ARGV     1 queue  2 most names to look at  3 where to start in the first id, see include/find.lua
--          4 what to do with ready ones: 'cancel' them too, 'free' their unique keys, since workers
--          refuse them, or 'leave' them  5… for each: id, only if it is due then (ms), '' for any
-- Returns  a code for each id: 'd' done, 'w' it is ready and stays, 'r' a process holds it, 'c' it
--          is due at another time, 'u' unknown; change_found explains an unfinished reply
-- Repeat   the same, for a minute
-- @include types
-- @include room
-- @include record
-- @include tracking
-- @include totals
-- @include dispatch/next_due
-- @include idempotent_reply
-- @include find

local function cancel_ready(name, value, wanted)
  local _, message_id, due, unique, task, more = read_tracked(value)
  if wanted and tonumber(due) ~= wanted then
    return 'c'
  end
  if ARGV[4] == 'cancel' then
    redis.call('HSET', READY_INDEX, name, '!' .. value)
  elseif unique ~= '-' then
    -- A worker refuses it. Until then it is ready, without its unique key.
    local rest = tracking(due, '-', task) .. (more ~= '' and ' ' .. more or '')
    redis.call('HSET', READY_INDEX, name, message_id .. ' ' .. rest)
  end
  release_key(unique, string.match(name, '^[^%z]*'), message_id)
  return ARGV[4] == 'cancel' and 'd' or 'w'
end

local cancelled = 0

local function cancel_scheduled(name, score, data)
  remove_entry(name, score, data)
  cancelled = cancelled + 1
end

return answer_once(KEYS[11], function()
  expect_state()
  -- Removing must pass on a full server: see dispatch/promote.lua.
  redis.call('ZREM', KEYS[10], '')
  if redis.call('EXISTS', select(12, unpack(KEYS))) == 0 then
    forget_waiting()
  end
  local codes = change_found(
    5, 2, ARGV[2], ARGV[3], cancel_scheduled, ARGV[4] ~= 'leave' and cancel_ready)
  look_on(KEYS[10], ARGV[1], DUE)
  -- Ready ones when they are dropped: until then they are there.
  add_total(TOTALS, 'cancelled', cancelled)
  return codes
end)
