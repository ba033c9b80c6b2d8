-- Return about 1 MB of the periodic entries that are due for a look. No other caller gets these
-- entries for claim_ms.
--
-- KEYS     periodic  periodic_at  clock
-- ARGV     most_entries
--          claim_ms: for how long no other caller gets the entries (ms)
--          handled_look_ms: a latest look (ms) after which the clock was set back, if the caller
--            has corrected the entries that wait for that time; '' for none
--          channel: the channel to which periodic runners listen
--          other_names…: names that this caller leaves to others
-- Returns  {now (µs), when to look at the next entry (ms) or '', the latest look (ms) if the clock
--          was set back since, else '', number of periodic runners that listen (0 if unknown), for each
--          entry its name and its record}
-- Repeat   returns other entries; the first ones come again after claim_ms
-- Roles    worker, dispatcher
-- @include clock
-- @include types
-- @include byte_limit

expect_types(FIRST.periodic, 'hash', 'zset', 'hash')
local time_us = now_us()
local now = to_ms(time_us)
-- A full server must accept the script: see dispatch/promote.lua.
redis.call('ZREM', KEYS.periodic_at, '')
-- 'ticked' stays when the clock is set back, until a caller has corrected the entries that wait for
-- that time.
local latest = redis.call('HGET', KEYS.clock, 'ticked')
if latest == ARGV.handled_look_ms or (read_whole(latest) or 0) < now then
  latest = string.format('%.0f', now)
  if redis.call('EXISTS', KEYS.periodic) == 1 then
    redis.call('HSET', KEYS.clock, 'ticked', latest)
  end
end
local others, number = {}, #ARGV - FIRST.other_names + 1
for i = FIRST.other_names, #ARGV do
  others[ARGV[i]] = true
end
local names = redis.call(
  'ZRANGEBYSCORE', KEYS.periodic_at, '-inf', now, 'LIMIT', 0, ARGV.most_entries + number)
local listening = redis.pcall('PUBSUB', 'NUMSUB', ARGV.channel)
local reply = {time_us, '', tonumber(latest) > now + 1000 and latest or '', listening[2] or 0}
for _, name in ipairs(names) do
  if bytes_left <= 0 then
    break
  end
  local data = redis.call('HGET', KEYS.periodic, name)
  if others[name] then
    -- The time of the entry does not change, so a caller that can fire the entry gets it at once.
  elseif data and #reply < 4 + 2 * ARGV.most_entries then
    take_bytes(#data)
    redis.call('ZADD', KEYS.periodic_at, now + tonumber(ARGV.claim_ms), name)
    reply[#reply + 1] = name
    reply[#reply + 1] = data
  elseif not data then
    redis.call('ZREM', KEYS.periodic_at, name)
  end
end
local first = redis.call('ZRANGE', KEYS.periodic_at, 0, number, 'WITHSCORES')
for i = 1, #first, 2 do
  if not others[first[i]] then
    reply[2] = first[i + 1]
    break
  end
end
return reply
