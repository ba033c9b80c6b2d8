-- Make a dead letter of a message that a process holds.
--
-- KEYS     1 leased  2 deliveries  3 dead  4 dead_at  5 queues
-- ARGV     1 field of the message  2 id of the letter  3 reason  4 queue  5 layout of the queue
-- Returns  1, or 0 when it is not held
-- Repeat   0
-- @include clock
-- @include types
-- @include lease
-- @include bury

local held = redis.call('HGET', KEYS[1], ARGV[1])
local _, _, start = read_leased(held)
if not held or held == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  return 0
end
expect_type(KEYS[2], 'hash')
expect_type(KEYS[3], 'hash')
expect_type(KEYS[4], 'zset')
-- Moving must pass on a full server: see promote.lua.
redis.call('ZREM', KEYS[4], '')
redis.call('HSETNX', KEYS[5], ARGV[4], ARGV[5])
local message = string.sub(held, start or 1)
bury_letter(KEYS[3], KEYS[4], ARGV[2], to_ms(now_us()), 0, ARGV[3], message)
redis.call('HDEL', KEYS[2], redis.sha1hex(message))
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
