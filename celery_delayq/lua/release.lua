-- Give a scheduled entry back to stock workers: into the ready list as the message it came as.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 wake  6 ready list of its priority
-- ARGV     1 queue  2 id  3 the record that was read  4 message to push
-- Returns  1, or 0 when the entry is gone or another one
-- Repeat   0
-- @include types
-- @include record
-- @include agenda
-- @include wake

local queue, id = ARGV[1], ARGV[2]
local data = redis.call('HGET', KEYS[2], id)
local due = redis.call('ZSCORE', KEYS[1], id)
if not due or data ~= ARGV[3] then
  return 0
end
expect_type(KEYS[6], 'list')
-- Moving frees memory, so a full server must let it pass: see promote.lua.
redis.call('ZREM', KEYS[4], '')
redis.call('LPUSH', KEYS[6], ARGV[4])
wake(KEYS[5])
redis.call('ZREM', KEYS[1], id)
redis.call('HDEL', KEYS[2], id)
local _, _, task = read_record(data)
redis.call('ZREM', KEYS[3], task_member(task, tonumber(due), id))
look_again(KEYS[4], queue, KEYS[1])
return 1
