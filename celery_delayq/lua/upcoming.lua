-- Tell periodic entries that are to be looked at, and leave them to who asked for a while.
--
-- KEYS     1 periodic  2 periodic_at
-- ARGV     1 most entries  2 for how long others leave them alone (ms)  3… names that are left to
--          others
-- Returns  {now (µs), when to look at the next one (ms) or '', for each its name and its record}
-- Repeat   tells others; these come again when the while is over
-- @include clock
-- @include types

expect_type(KEYS[1], 'hash')
expect_type(KEYS[2], 'zset')
local clock = now_us()
local now = to_ms(clock)
-- A full server must let it pass: see promote.lua.
redis.call('ZREM', KEYS[2], '')
local others, number = {}, #ARGV - 2
for i = 3, #ARGV do
  others[ARGV[i]] = true
end
local names = redis.call(
  'ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1] + number)
local reply = {clock, ''}
for _, name in ipairs(names) do
  local data = redis.call('HGET', KEYS[1], name)
  if others[name] then
    -- Its time does not change: whoever can fire it finds it at once.
  elseif data and #reply < 2 + 2 * ARGV[1] then
    redis.call('ZADD', KEYS[2], now + tonumber(ARGV[2]), name)
    reply[#reply + 1] = name
    reply[#reply + 1] = data
  elseif not data then
    redis.call('ZREM', KEYS[2], name)
  end
end
local first = redis.call('ZRANGE', KEYS[2], 0, number, 'WITHSCORES')
for i = 1, #first, 2 do
  if not others[first[i]] then
    reply[2] = first[i + 1]
    break
  end
end
return reply
