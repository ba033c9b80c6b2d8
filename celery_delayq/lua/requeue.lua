-- Put messages that a process holds back into their ready lists.
--
-- KEYS     1 leased  2 wake  3 deliveries  4 dead  5 dead_at  6 suspects  7… ready lists
-- ARGV     1 'first' to run next, 'last' to run after all that is ready  2 what to count:
--          'nothing', 'requeued' or 'crashed'  3 most crashes, 0 for no limit  4 how many ready
--          lists  5… their priority steps, then the fields of the messages in the order in which
--          they were leased
-- Returns  {requeued, buried}
-- Repeat   {0, 0}
-- @include clock
-- @include types
-- @include wake
-- @include lease
-- @include bury

local lists = tonumber(ARGV[4])
local list_of = {}
for i = 1, lists do
  list_of[ARGV[4 + i]] = KEYS[6 + i]
  expect_type(KEYS[6 + i], 'list')
end
expect_type(KEYS[3], 'hash')
expect_type(KEYS[4], 'hash')
expect_type(KEYS[5], 'zset')
expect_type(KEYS[6], 'list')
-- Moving frees memory, so a full server must let it pass: see promote.lua.
redis.call('ZREM', KEYS[5], '')

local moved, buried = 0, 0
local push = ARGV[1] == 'last' and 'LPUSH' or 'RPUSH'
local from, to, by = #ARGV, 5 + lists, -1
if ARGV[1] == 'last' then
  from, to, by = to, from, 1
end
for i = from, to, by do
  local held = redis.call('HGET', KEYS[1], ARGV[i])
  local step, mark, start = read_leased(held)
  if held and held ~= '' and not step then
    bury_letter(KEYS[4], KEYS[5], ARGV[i], to_ms(now_us()), 0, 'unreadable', held)
    buried = buried + 1
  elseif step then
    local message = string.sub(held, start)
    local crashes = 0
    if ARGV[2] ~= 'nothing' then
      local digest = redis.sha1hex(message)
      local reaped, crashed, requeued = read_deliveries(redis.call('HGET', KEYS[3], digest))
      if ARGV[2] == 'crashed' then
        crashed = crashed + 1
        crashes = crashed
      else
        requeued = requeued + 1
      end
      write_deliveries(KEYS[3], digest, reaped, crashed, requeued)
    end
    local most = tonumber(ARGV[3])
    if most > 0 and crashes > most then
      redis.call('HDEL', KEYS[3], redis.sha1hex(message))
      bury_letter(KEYS[4], KEYS[5], redis.sha1hex(message), to_ms(now_us()), 0,
        string.format('killed its process %d times', crashes), message)
      buried = buried + 1
    elseif mark == '!' then
      redis.call(push, KEYS[6], step .. '\n' .. message)
      moved = moved + 1
    else
      redis.call(push, list_of[step] or KEYS[7], message)
      moved = moved + 1
    end
  end
  redis.call('HDEL', KEYS[1], ARGV[i])
end
if moved > 0 then
  wake(KEYS[2])
end
return {moved, buried}
