-- Store a message that cannot be delivered as a dead letter, with the reason.
--
-- KEYS     dead  dead_at  queues  totals
-- ARGV     dead_letter_id  reason
--          message: its bytes
--          queue  layout
--          details: details in JSON, '' for none
--          reason_kind: the kind of reason in the counter's name
-- Returns  1
-- Repeat   stores no second copy
-- Roles    producer, worker, dispatcher
-- @include clock
-- @include types
-- @include dead_letter
-- @include totals

expect_types(FIRST.dead, 'hash', 'zset')
-- No other key has the message, so a full server must accept the script: see dispatch/promote.lua.
redis.call('ZREM', KEYS.dead_at, '')
redis.call('HSETNX', KEYS.queues, ARGV.queue, ARGV.layout)
-- A caller repeats a call whose reply was lost: then the dead letter may be there already.
local there = redis.call('HGET', KEYS.dead, dead_letter_name(ARGV.dead_letter_id))
local same = there and ' ' .. ARGV.reason .. '\n' .. ARGV.details .. ARGV.message
if same and string.sub(there, -#same) == same then
  return 1
end
add_dead_letter(KEYS.dead, KEYS.dead_at, ARGV.dead_letter_id, to_ms(now_us()), 0, ARGV.reason,
  ARGV.message, ARGV.details)
add_total(KEYS.totals, 'dead:' .. ARGV.reason_kind, 1)
add_total(KEYS.totals, 'aside', 1)
return 1
