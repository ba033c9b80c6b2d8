-- Keep a message that cannot be delivered, with the reason.
--
-- KEYS     1 dead  2 dead_at  3 queues  4 totals
-- ARGV     1 id  2 reason  3 the message's bytes  4 queue  5 layout of the queue  6 details in JSON,
--          '' for none  7 the kind of reason by which it is counted
-- Returns  1
-- Repeat   keeps no second copy
-- @include clock
-- @include types
-- @include dead_letter
-- @include totals

expect_types(1, 'hash', 'zset')
-- The message is nowhere else, so a full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[2], '')
redis.call('HSETNX', KEYS[3], ARGV[4], ARGV[5])
-- Nobody knows whether a call was made whose reply was lost, so it is repeated.
local there = redis.call('HGET', KEYS[1], dead_letter_name(ARGV[1]))
local same = there and ' ' .. ARGV[2] .. '\n' .. ARGV[6] .. ARGV[3]
if same and string.sub(there, -#same) == same then
  return 1
end
add_dead_letter(KEYS[1], KEYS[2], ARGV[1], to_ms(now_us()), 0, ARGV[2], ARGV[3], ARGV[6])
add_total(KEYS[4], 'dead:' .. ARGV[7], 1)
add_total(KEYS[4], 'aside', 1)
return 1
