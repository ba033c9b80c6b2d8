-- Forget what is known of ready messages, since stock workers take them from now on; those that
-- were cancelled go, too.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10… ready lists
-- ARGV     1… for each: its name in READY_INDEX, what stands there, the message if it was cancelled
-- Returns  how many messages were removed
-- Repeat   0
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include repair/forget_cancelled

expect_state()
expect_all(10, 'list')
local removed = 0
for i = 1, #ARGV, 3 do
  local name, value, message = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if redis.call('HGET', READY_INDEX, name) == value then
    local dropped = 0
    for j = 10, message ~= '' and #KEYS or 0 do
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
