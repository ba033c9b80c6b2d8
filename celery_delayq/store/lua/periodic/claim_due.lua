-- Return about 1 MB of the periodic entries that are due for a look. No other caller gets them for a
-- while.
--
-- KEYS     1 periodic  2 periodic_at  3 clock
-- ARGV     1 most entries  2 for how long others leave them alone (ms)  3 the latest look (ms) for
--          which whoever asks has put right what it left behind, '' for none  4 the channel to
--          which those who ask listen  5… names that are left to others
-- Returns  {now (µs), when to look at the next one (ms) or '', the latest look (ms) when the clock
--          was set back since, else '', how many listen, 0 when that is not known, for each its name
--          and its record}
-- Repeat   tells others; these come again when the while is over
-- @include clock
-- @include types
-- @include room

expect_types(1, 'hash', 'zset', 'hash')
local clock = now_us()
local now = to_ms(clock)
-- A full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[2], '')
-- Stays when the clock is set back, until somebody has put right what waits for that time.
local latest = redis.call('HGET', KEYS[3], 'ticked')
if latest == ARGV[3] or (read_whole(latest) or 0) < now then
  latest = string.format('%.0f', now)
  if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('HSET', KEYS[3], 'ticked', latest)
  end
end
local others, number = {}, #ARGV - 4
for i = 5, #ARGV do
  others[ARGV[i]] = true
end
local names = redis.call(
  'ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1] + number)
local listening = redis.pcall('PUBSUB', 'NUMSUB', ARGV[4])
local reply = {clock, '', tonumber(latest) > now + 1000 and latest or '', listening[2] or 0}
for _, name in ipairs(names) do
  if room <= 0 then
    break
  end
  local data = redis.call('HGET', KEYS[1], name)
  if others[name] then
    -- Its time does not change: whoever can fire it finds it at once.
  elseif data and #reply < 4 + 2 * ARGV[1] then
    take_room(#data)
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
