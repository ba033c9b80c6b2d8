-- Give a scheduled entry back to stock workers: into the ready list as the message it came as.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running  9 agenda
--          10 wake  11 ready list of its priority
-- ARGV     1 queue  2 id  3 the record that was read  4 message to push
-- Returns  1, or 0 when the entry is gone or another one
-- Repeat   0
-- @include types
-- @include record
-- @include label
-- @include state
-- @include agenda
-- @include wake

local queue, id = ARGV[1], ARGV[2]
local data = redis.call('HGET', ENTRIES, id)
local due = redis.call('ZSCORE', DUE, id)
if not due or data ~= ARGV[3] then
  return 0
end
expect_state()
expect_type(KEYS[11], 'list')
-- Moving frees memory, so a full server must let it pass: see promote.lua.
redis.call('ZREM', KEYS[9], '')
redis.call('LPUSH', KEYS[11], ARGV[4])
wake(KEYS[10])
remove_entry(id, due, data)
look_on(KEYS[9], queue, DUE)
return 1
