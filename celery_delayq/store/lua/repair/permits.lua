-- Give back permits of messages that are not leased: older code has ended their leases.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  next_due  permits  blocked_lanes  freed_lanes
-- ARGV     queue  wake_channel
--          repair: '1' to repair
--          messages…: for each permit of the queue: lane, id, message id
-- Returns  {0, looked at, {}, then {kind, found, repaired, some ids…}}
-- Repeat   finds what is left
-- Roles    worker, dispatcher
-- @include clock
-- @include types
-- @include tracking
-- @include dispatch/next_due
-- @include limits/permits
-- @include repair/report

local repair = ARGV.repair == '1'
expect_state()
expect_types(FIRST.next_due, 'zset', 'zset', 'zset', 'zset')
for i = FIRST.messages, #ARGV, 3 do
  local lane, id, message_id = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local member = permit_member(lane, ARGV.queue, id, message_id)
  if not find_tracked(LEASED_INDEX, id, message_id) and redis.call('ZSCORE', KEYS.permits, member) then
    note_drift('lost_permit', id, repair)
    if repair then
      -- Memory is freed, so a full server must accept the repair: see dispatch/promote.lua.
      redis.call('ZREM', KEYS.next_due, '')
      free_permit(lane, ARGV.queue, member)
    end
  end
end
return report('0', (#ARGV - FIRST.messages + 1) / 3)
