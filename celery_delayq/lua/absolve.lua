-- Put messages that wait to be delivered alone into their ready lists, to run next, at most a
-- batch of them and about 1 MB.
--
-- KEYS     1 suspects  2 wake  3 dead  4 dead_at  5… ready lists
-- ARGV     1 most messages  2… the priority steps of KEYS[5…]
-- Returns  {moved, buried}; buried is what cannot be read
-- Repeat   goes on with what is left
-- @include clock
-- @include types
-- @include room
-- @include lease
-- @include wake
-- @include bury

local list_of = {}
for i = 5, #KEYS do
  list_of[ARGV[i - 3]] = KEYS[i]
  expect_type(KEYS[i], 'list')
end
expect_type(KEYS[1], 'list')
expect_type(KEYS[3], 'hash')
expect_type(KEYS[4], 'zset')
-- Moving frees memory, so a full server must let it pass: see promote.lua.
redis.call('ZREM', KEYS[4], '')
local moved, buried = 0, 0
-- The last to run comes first, so that the order stays over several batches.
for _ = 1, math.min(redis.call('LLEN', KEYS[1]), tonumber(ARGV[1])) do
  if room <= 0 then
    break
  end
  local item = redis.call('LPOP', KEYS[1])
  take_room(#item)
  local step, _, start = read_leased(item)
  if step then
    redis.call('RPUSH', list_of[step] or KEYS[5], string.sub(item, start))
    moved = moved + 1
  else
    local id = redis.sha1hex(item)
    bury_letter(KEYS[3], KEYS[4], id, to_ms(now_us()), 0, 'unreadable suspect', item)
    buried = buried + 1
  end
end
if moved > 0 then
  wake(KEYS[2])
end
return {moved, buried}
