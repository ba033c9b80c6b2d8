-- Put messages that a process holds back into their ready lists.
--
-- KEYS     1 due  2 entries  3 tasks  4 parked  5 unique  6 twins  7 waiting  8 running  9 leased
--          10 wake  11 deliveries  12 dead  13 dead_at  14 suspects  15… ready lists
-- ARGV     1 'first' to run next, 'last' to run after all that is ready  2 what to count:
--          'nothing', 'requeued' or 'crashed'  3 most crashes, 0 for no limit  4 details for
--          the letter of one that crashed too often  5 how many ready lists  6… their priority
--          steps, then the fields of the messages in the order in which they were leased
-- Returns  {requeued, buried}
-- Repeat   {0, 0}
-- @include clock
-- @include types
-- @include record
-- @include label
-- @include state
-- @include wake
-- @include lease
-- @include bury

local lists = tonumber(ARGV[5])
local list_of = {}
for i = 1, lists do
  list_of[ARGV[5 + i]] = KEYS[14 + i]
  expect_type(KEYS[14 + i], 'list')
end
expect_state()
expect_type(KEYS[11], 'hash')
expect_type(KEYS[12], 'hash')
expect_type(KEYS[13], 'zset')
expect_type(KEYS[14], 'list')
-- Moving frees memory, so a full server must let it pass: see promote.lua.
redis.call('ZREM', KEYS[13], '')

local moved, buried = 0, 0
local push = ARGV[1] == 'last' and 'LPUSH' or 'RPUSH'
local from, to, by = #ARGV, 6 + lists, -1
if ARGV[1] == 'last' then
  from, to, by = to, from, 1
end
for i = from, to, by do
  local held = redis.call('HGET', KEYS[9], ARGV[i])
  local step, mark, start = read_leased(held)
  if held and held ~= '' and not step then
    bury_letter(KEYS[12], KEYS[13], ARGV[i], to_ms(now_us()), 0, 'unreadable', held)
    buried = buried + 1
  elseif step then
    local message = string.sub(held, start)
    local crashes = 0
    if ARGV[2] ~= 'nothing' then
      local digest = redis.sha1hex(message)
      local reaped, crashed, requeued = read_deliveries(redis.call('HGET', KEYS[11], digest))
      if ARGV[2] == 'crashed' then
        crashed = crashed + 1
        crashes = crashed
      else
        requeued = requeued + 1
      end
      write_deliveries(KEYS[11], digest, reaped, crashed, requeued)
    end
    local most = tonumber(ARGV[3])
    if most > 0 and crashes > most then
      local digest = redis.sha1hex(message)
      redis.call('HDEL', KEYS[11], digest)
      forget_tracked(RUNNING, message)
      bury_letter(KEYS[12], KEYS[13], read_label(message) or digest, to_ms(now_us()), 0,
        string.format('killed its process %d times', crashes), message, ARGV[4])
      buried = buried + 1
    elseif mark == '!' then
      track_back(message)
      redis.call(push, KEYS[14], step .. '\n' .. message)
      moved = moved + 1
    else
      track_back(message)
      redis.call(push, list_of[step] or KEYS[15], message)
      moved = moved + 1
    end
  end
  redis.call('HDEL', KEYS[9], ARGV[i])
end
if moved > 0 then
  wake(KEYS[10])
end
return {moved, buried}
