-- Look at what leads to a queue: the agenda, while something is scheduled, and the registry.
--
-- KEYS     1 due  2 entries  3 tasks  4 agenda  5 queues  6 leases  7 suspects  8 dead
-- ARGV     1 queue  2 layout of the queue  3 '1' to mend  4 for how long (ms) a queue is left alone
--          after an error (defer.lua)
-- Returns  {0, 1, then for each kind {kind, found, mended, queue}}
-- Repeat   finds what is left
-- @include clock
-- @include types
-- @include agenda
-- @include mend

local queue, mend = ARGV[1], ARGV[3] == '1'
expect_type(KEYS[1], 'zset')
-- Small, and without it the queue is forgotten: a full server must let it pass, see promote.lua.
if mend then
  redis.call('ZREM', KEYS[4], '')
end
-- An early look does no harm: promote.lua then says when the next one is to be.
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local look = tonumber(redis.call('ZSCORE', KEYS[4], queue) or nil)
local latest = first[2] and math.max(tonumber(first[2]), to_ms(now_us()) + tonumber(ARGV[4]))
if latest and (not look or look > latest) then
  note('agenda_late', queue, mend)
elseif look and not latest then
  note('idle_agenda', queue, mend)
end
if mend and #found > 0 then
  look_again(KEYS[4], queue, KEYS[1])
end
if redis.call('HEXISTS', KEYS[5], queue) == 0
  and redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[7], KEYS[8]) > 0
then
  note('unregistered', queue, mend)
  if mend then
    redis.call('HSETNX', KEYS[5], queue, ARGV[2])
  end
end
return tell('0', 1)
