-- Move quarantined messages to their ready lists, to run next, at most a batch and about 1 MB.
--
-- KEYS     quarantined  wake  dead  dead_at  totals  ready_lists…
-- ARGV     most_messages
--          steps…: the priority steps of ready_lists
-- Returns  {moved, dead_lettered}; unreadable messages are dead-lettered
-- Repeat   goes on with the messages that are left
-- Roles    operator
-- @include clock
-- @include types
-- @include byte_limit
-- @include leases/lease
-- @include wake
-- @include dead_letter
-- @include totals

local list_of = lists_by_step({select(FIRST.ready_lists, unpack(KEYS))},
  {select(FIRST.steps, unpack(ARGV))})
expect_type(KEYS.quarantined, 'list')
expect_types(FIRST.dead, 'hash', 'zset')
-- Moving frees memory, so a full server must accept the script: see dispatch/promote.lua.
redis.call('ZREM', KEYS.dead_at, '')
local moved, dead_lettered = 0, 0

local function put_back(item)
  local step, _, start = read_leased(item)
  if step then
    redis.call('RPUSH', list_of[step] or KEYS[FIRST.ready_lists], string.sub(item, start))
    moved = moved + 1
  else
    local id = redis.sha1hex(item)
    add_dead_letter(KEYS.dead, KEYS.dead_at, id, to_ms(now_us()), 0,
      'unreadable quarantined message', item)
    dead_lettered = dead_lettered + 1
  end
end

-- The message that would run last is moved first, so that several batches keep the order.
local left = tonumber(ARGV.most_messages)
repeat
  local items, bytes = redis.call('LPOP', KEYS.quarantined, count_to_read(left)) or {}, 0
  for _, item in ipairs(items) do
    put_back(item)
    bytes = bytes + #item
  end
  take_read(#items, bytes)
  left = left - #items
until #items == 0 or left == 0 or bytes_left <= 0
if moved > 0 then
  wake_consumers(KEYS.wake)
end
add_total(KEYS.totals, 'dead:corrupt', dead_lettered)
add_total(KEYS.totals, 'ready', -dead_lettered)
return {moved, dead_lettered}
