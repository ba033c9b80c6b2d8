-- Forget messages that are done.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running  9 leased
--          10 deliveries  11 history
-- ARGV     1 about how many runs to keep, 0 for no history  2 with a history the lines of their
--          runs, each with a line feed behind it, '' where there is none  3… fields of the messages
-- Returns  how many were held
-- Repeat   0
-- @include types
-- @include record
-- @include label
-- @include state
-- @include lease
-- @include history

local most = tonumber(ARGV[1])
local fields = {}
for i = 3, #ARGV do
  fields[#fields + 1] = ARGV[i]
end
local counted = redis.call('EXISTS', KEYS[10]) == 1
local tracked = counted or redis.call('EXISTS', RUNNING) == 1
local held = {}
if tracked or most > 0 then
  held = redis.call('HMGET', KEYS[9], unpack(fields))
end
if tracked then
  expect_state()
  for _, each in ipairs(held) do
    local _, _, start = read_leased(each)
    if start then
      if counted then
        redis.call('HDEL', KEYS[10], redis.sha1hex(string.sub(each, start)))
      end
      forget_tracked(RUNNING, each, start)
    end
  end
end
local known = redis.call('HDEL', KEYS[9], unpack(fields))
if most > 0 then
  local i = 0
  for line in string.gmatch(ARGV[2], '([^\n]*)\n') do
    i = i + 1
    -- What a retry has replaced is empty: retry.lua has written its line.
    if held[i] and held[i] ~= '' then
      add_run(KEYS[11], most, line)
    end
  end
end
return known
