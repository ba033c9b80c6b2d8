-- Put messages that wait to be delivered alone into their ready lists, to run next, at most a
-- batch of them and about 1 MB.
--
-- KEYS     1 quarantined  2 wake  3 dead  4 dead_at  5 totals  6… ready lists
-- ARGV     1 most messages  2… the priority steps of KEYS[6…]
-- Returns  {moved, dead_lettered}; dead-lettered is what cannot be read
-- Repeat   goes on with what is left
-- @include clock
-- @include types
-- @include room
-- @include lease
-- @include wake
-- @include dead_letter
-- @include totals

local list_of = lists_by_step({select(6, unpack(KEYS))}, {select(2, unpack(ARGV))})
expect_type(KEYS[1], 'list')
expect_types(3, 'hash', 'zset')
-- Moving frees memory, so a full server must let it pass: see dispatch/promote.lua.
redis.call('ZREM', KEYS[4], '')
local moved, dead_lettered = 0, 0

local function put_back(item)
  local step, _, start = read_leased(item)
  if step then
    redis.call('RPUSH', list_of[step] or KEYS[6], string.sub(item, start))
    moved = moved + 1
  else
    local id = redis.sha1hex(item)
    add_dead_letter(KEYS[3], KEYS[4], id, to_ms(now_us()), 0, 'unreadable quarantined message', item)
    dead_lettered = dead_lettered + 1
  end
end

-- The last to run comes first, so that the order stays over several batches.
local left = tonumber(ARGV[1])
repeat
  local items, bytes = redis.call('LPOP', KEYS[1], few(left)) or {}, 0
  for _, item in ipairs(items) do
    put_back(item)
    bytes = bytes + #item
  end
  take_read(#items, bytes)
  left = left - #items
until #items == 0 or left == 0 or room <= 0
if moved > 0 then
  wake(KEYS[2])
end
add_total(KEYS[5], 'dead:corrupt', dead_lettered)
add_total(KEYS[5], 'ready', -dead_lettered)
return {moved, dead_lettered}
