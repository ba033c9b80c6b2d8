-- Forget messages that are done.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running  9 leased
--          10 deliveries  11 history
-- ARGV     1 about how many runs to keep, 0 for no history  2… fields of the messages, with a
--          history each followed by the line of its run, '' where there is none
-- Returns  how many were held
-- Repeat   0
-- @include types
-- @include record
-- @include label
-- @include state
-- @include lease
-- @include history

local most = tonumber(ARGV[1])
local fields, lines = {}, {}
for i = 2, #ARGV, most > 0 and 2 or 1 do
  fields[#fields + 1] = ARGV[i]
  lines[#fields] = ARGV[i + 1]
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
  for i, each in ipairs(held) do
    -- What a retry has replaced is empty: retry.lua has written its line.
    if each and each ~= '' then
      add_run(KEYS[11], most, lines[i])
    end
  end
end
return known
