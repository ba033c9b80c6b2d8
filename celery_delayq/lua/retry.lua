-- Schedule what takes the place of a message that a process holds: its retry, or itself, when it
-- came from a stock producer with a future ETA.
--
-- The process still acknowledges the message, so an empty value stays in its place until then.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 queues  6 wake  7 ready list  8 leased
--          9 deliveries
-- ARGV     1 queue  2 layout of the queue  3 wake channel  4 id  5 due (ms, '+' before it when
--          it counts from now)  6 which of KEYS is its ready list  7 record  8 field of the
--          message  9 '1' to hand out what is due
-- Returns  'scheduled' | 'ready' | 'due' | 'gone' | 'duplicate'; 'due' changed nothing, 'gone' is
--          no longer held, and whoever has it now makes its own
-- Repeat   'duplicate'
-- @include clock
-- @include types
-- @include record
-- @include entry
-- @include agenda
-- @include wake
-- @include lease

local clock = now_us()
local id, due, data, field = ARGV[4], due_of(ARGV[5], clock), ARGV[7], ARGV[8]
local _, nonce, task, start = read_record(data)
local held = redis.call('HGET', KEYS[8], field)
if not held then
  return 'gone'
end
local _, _, held_start = read_leased(held)
if not held_start then
  return 'duplicate'
end
expect_type(KEYS[1], 'zset')
expect_type(KEYS[2], 'hash')
expect_type(KEYS[3], 'zset')
expect_type(KEYS[7], 'list')
expect_type(KEYS[9], 'hash')
-- One takes the place of the other, so a full server must let it pass: see promote.lua.
redis.call('ZREM', KEYS[4], '')
local state
if due > to_ms(clock) then
  id = put_record(KEYS[2], id, data, nonce)
  if id then
    redis.call('ZADD', KEYS[1], due, id)
    redis.call('ZADD', KEYS[3], 0, task_member(task, due, id))
  end
  announce(KEYS[4], KEYS[5], ARGV[1], ARGV[2], due, clock, ARGV[3])
  state = 'scheduled'
elseif ARGV[9] == '1' then
  redis.call('LPUSH', KEYS[7], string.sub(data, start))
  wake(KEYS[6])
  state = 'ready'
else
  return 'due'
end
redis.call('HDEL', KEYS[9], redis.sha1hex(string.sub(held, held_start)))
redis.call('HSET', KEYS[8], field, '')
return state
