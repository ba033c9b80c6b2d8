-- Make a dead letter of a message that a process holds.
--
-- KEYS     1 due  2 entries  3 tasks  4 paused_due  5 unique  6 duplicate_ids  7 ready_index
--          8 leased_index  9 totals  10 leased  11 deliveries  12 dead  13 dead_at  14 queues
--          15 history
-- ARGV     1 field of the message  2 id of the dead letter  3 reason  4 queue  5 layout of the queue
--          6 details in JSON, '' for none  7 about how many runs to keep in the history  8 the
--          line of its run there, '' for none  9 the kind of reason by which it is counted
-- Returns  1, or 0 when it is not held
-- Repeat   0
-- @include clock
-- @include types
-- @include record
-- @include tracking
-- @include totals
-- @include lease
-- @include dead_letter
-- @include history

local held = redis.call('HGET', KEYS[10], ARGV[1])
local _, _, start = read_leased(held)
if not held or held == '' then
  add_total(TOTALS, 'empty', -redis.call('HDEL', KEYS[10], ARGV[1]))
  return 0
end
expect_state()
expect_types(11, 'hash', 'hash', 'zset')
-- Moving must pass on a full server: see dispatch/promote.lua.
redis.call('ZREM', KEYS[13], '')
redis.call('HSETNX', KEYS[14], ARGV[4], ARGV[5])
local message = message_in(held, start or 1)
forget_tracked(LEASED_INDEX, message)
add_dead_letter(KEYS[12], KEYS[13], ARGV[2], to_ms(now_us()), 0, ARGV[3], message, ARGV[6])
if redis.call('EXISTS', KEYS[11]) == 1 then
  redis.call('HDEL', KEYS[11], redis.sha1hex(message))
end
redis.call('HDEL', KEYS[10], ARGV[1])
add_total(TOTALS, 'dead:' .. ARGV[9], 1)
add_run(KEYS[15], ARGV[7], ARGV[8])
return 1
