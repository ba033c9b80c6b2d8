-- Keep a message that cannot be delivered, with the reason.
--
-- KEYS     dead  dead_at  queues  totals
-- ARGV     dead_letter_id  reason
--          message: its bytes
--          queue  layout
--          details: details in JSON, '' for none
--          reason_kind: the kind of reason by which it is counted
-- Returns  1
-- Repeat   keeps no second copy
-- Roles    producer, worker, dispatcher
-- @include clock
-- @include types
-- @include dead_letter
-- @include totals

expect_types(FIRST.dead, 'hash', 'zset')
-- The message is nowhere else, so a full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS.dead_at, '')
redis.call('HSETNX', KEYS.queues, ARGV.queue, ARGV.layout)
-- Nobody knows whether a call was made whose reply was lost, so it is repeated.
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
