-- Make a dead letter of a leased message.
--
-- KEYS     due  entries  tasks  paused_due  held  lanes  unique  duplicate_ids  ready_index
--          leased_index  totals  leased  deliveries  dead  dead_at  queues  history
--          history_index  history_index_before
--          next_due  permits  blocked_lanes  freed_lanes
-- ARGV     field: field of the message
--          dead_letter_id  reason  queue  layout
--          details: details in JSON, '' for none
--          history_size: about how many runs to keep in the history
--          run_line: the line of its run in the history, '' for none
--          reason_kind: the kind of reason in the counter's name
--          wake_channel
-- Returns  1, or 0 if the message is not leased
-- Repeat   0
-- Roles    worker
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include leases/lease
-- @include dispatch/next_due
-- @include limits/permits
-- @include dead_letter
-- @include history

local value = redis.call('HGET', KEYS.leased, ARGV.field)
local _, _, start = read_leased(value)
if not value or value == '' then
  add_total(TOTALS, 'empty', -redis.call('HDEL', KEYS.leased, ARGV.field))
  return 0
end
expect_state()
expect_types(FIRST.deliveries, 'hash', 'hash', 'zset')
-- A full server must accept the script: see dispatch/promote.lua.
redis.call('ZREM', KEYS.dead_at, '')
redis.call('HSETNX', KEYS.queues, ARGV.queue, ARGV.layout)
local message = message_in(value, start or 1)
end_lease(ARGV.queue, message)
add_dead_letter(KEYS.dead, KEYS.dead_at, ARGV.dead_letter_id, to_ms(now_us()), 0, ARGV.reason,
  message, ARGV.details)
if redis.call('EXISTS', KEYS.deliveries) == 1 then
  redis.call('HDEL', KEYS.deliveries, redis.sha1hex(message))
end
redis.call('HDEL', KEYS.leased, ARGV.field)
add_total(TOTALS, 'dead:' .. ARGV.reason_kind, 1)
add_run(tonumber(ARGV.history_size), ARGV.run_line)
return 1
