-- Forget ready messages, since stock workers take them from now on, and drop cancelled ones.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  ready_lists…
-- ARGV     messages…: for each: its name in READY_INDEX, its value there, the message if it was
--            cancelled, else ''
-- Returns  number of messages that were removed from the ready lists
-- Repeat   0
-- Roles    operator
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include repair/forget_cancelled

expect_state()
expect_all(FIRST.ready_lists, 'list')
local removed = 0
for i = FIRST.messages, #ARGV, 3 do
  local name, value, message = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if redis.call('HGET', READY_INDEX, name) == value then
    local dropped = 0
    for j = FIRST.ready_lists, message ~= '' and #KEYS or 0 do
      dropped = dropped + redis.call('LREM', KEYS[j], -1, message)
    end
    forget_cancelled(name, value, dropped)
    removed = removed + dropped
  end
end
if redis.call('EXISTS', READY_INDEX) == 0 then
  forget_waiting()
end
return removed
