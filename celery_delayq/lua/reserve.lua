-- Lease messages of one queue to a process, at most as many as it asks for.
--
-- KEYS     1 wake  2 leased  3 leases  4 reaping  5 clock  6 deliveries  7 suspects
--          8 suspect_turn  9… ready lists, the most urgent first
-- ARGV     1 queue  2 incarnation  3 lease (ms)  4 nonce  5 most messages  6 how many ready lists
--          to take from  7 how many messages of other queues the process holds  8… the priority
--          steps of KEYS[9…]
-- Returns  {place of the first ready list with something left, 0 for none; '1' when delivered
--          alone; then for each: message, deliveries before ('' for none)}; the message number i
--          is held as '<nonce>:<i>'
-- Repeat   the same nonce returns the same messages while they are held
-- @include clock
-- @include types
-- @include wake
-- @include lease

local queue, incarnation, lease, nonce = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local limit, lists = tonumber(ARGV[5]), tonumber(ARGV[6])
local reply = {0, '0'}

local function tell(message, counted)
  reply[#reply + 1] = message
  reply[#reply + 1] = counted and redis.call('HGET', KEYS[6], redis.sha1hex(message)) or ''
end

-- The messages of this nonce, when an earlier call got them and its reply was lost.
local function repeated()
  local counted = redis.call('EXISTS', KEYS[6]) == 1
  local i = 1
  while true do
    local held = redis.call('HGET', KEYS[2], nonce .. ':' .. i)
    local _, mark, start = read_leased(held)
    if not start then
      return i > 1
    end
    if mark == '!' then
      reply[2] = '1'
    end
    tell(string.sub(held, start), counted)
    i = i + 1
  end
end

-- A message under suspicion of killing its worker is delivered alone, so that nothing else is
-- blamed or lost time with it. One worker at a time takes nothing more until it is free for it.
local function suspect()
  if redis.call('EXISTS', KEYS[7]) == 0 then
    return false
  end
  if redis.call('HLEN', KEYS[2]) + tonumber(ARGV[7]) > 0 then
    redis.call('SET', KEYS[8], incarnation, 'PX', lease, 'NX')
    return redis.call('GET', KEYS[8]) == incarnation
  end
  expect_type(KEYS[7], 'list')
  local item = redis.call('LINDEX', KEYS[7], -1)
  local step, _, start = read_leased(item)
  redis.call('HSET', KEYS[2], nonce .. ':1', step .. '!\n' .. string.sub(item, start))
  redis.call('RPOP', KEYS[7])
  redis.call('DEL', KEYS[8])
  reply[2] = '1'
  tell(string.sub(item, start), true)
  return true
end

local function take()
  for i = 9, 8 + lists do
    expect_type(KEYS[i], 'list')
  end
  local counted = redis.call('EXISTS', KEYS[6]) == 1
  local held, count = {}, 0
  for i = 9, 8 + lists do
    if count < limit then
      for _, message in ipairs(redis.call('RPOP', KEYS[i], limit - count) or {}) do
        count = count + 1
        held[2 * count - 1] = nonce .. ':' .. count
        held[2 * count] = ARGV[i - 1] .. '\n' .. message
        tell(message, counted)
      end
    end
  end
  if count > 0 then
    redis.call('HSET', KEYS[2], unpack(held))
  end
end

expect_type(KEYS[2], 'hash')
expect_type(KEYS[3], 'zset')
-- Moving frees memory, so a full server must let it pass: see promote.lua.
redis.call('ZREM', KEYS[4], '')
if not repeated() and not suspect() then
  take()
end
if #reply > 2 then
  hold_lease(KEYS[3], KEYS[4], KEYS[5], queue, incarnation, lease)
end
for i = #KEYS, 9, -1 do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    reply[1] = i - 8
  end
end
if reply[1] > 0 then
  wake(KEYS[1])
else
  redis.call('DEL', KEYS[1])
end
return reply
