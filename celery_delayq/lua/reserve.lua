-- Lease messages of one queue to a process, at most as many as it asks for.
--
-- KEYS     1 wake  2 leased  3 leases  4 reaping  5 clock  6 deliveries  7 suspects
--          8 suspect_turn  9 nonces  10… ready lists, the most urgent first
-- ARGV     1 queue  2 incarnation  3 lease (ms)  4 nonce, a number that grows  5 most messages
--          6 how many ready lists to take from  7 how many messages the process holds of any
--          queue, or may get by other calls; -1 when it cannot make room for long  8… the priority steps of KEYS[10…]
-- Returns  {place of the first ready list with something left, 0 for none; '1' when delivered
--          alone, '2' when the process is to take nothing until it holds nothing; then for each message: its field, which is '<nonce>:<place>', its bytes, its
--          deliveries before ('' for none)}
-- Repeat   returns what is still held of the same nonce, and takes nothing
-- @include clock
-- @include types
-- @include wake
-- @include lease

local queue, incarnation, lease, nonce = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local limit, lists = tonumber(ARGV[5]), tonumber(ARGV[6])
local reply = {0, '0'}

-- Before anything moves, all that can be refused.
expect_type(KEYS[2], 'hash')
expect_type(KEYS[3], 'zset')
expect_type(KEYS[4], 'zset')
expect_type(KEYS[6], 'hash')
expect_type(KEYS[7], 'list')
expect_type(KEYS[9], 'hash')
for i = 10, 9 + lists do
  expect_type(KEYS[i], 'list')
end
local ends = lease_now(KEYS[5], lease / 3) + lease
local counted = redis.call('EXISTS', KEYS[6]) == 1
-- Moving frees memory, so a full server must let it pass: see promote.lua.
redis.call('ZREM', KEYS[4], '')

local function tell(field, message)
  reply[#reply + 1] = field
  reply[#reply + 1] = message
  reply[#reply + 1] = counted and redis.call('HGET', KEYS[6], redis.sha1hex(message)) or ''
end

local function hold(place, head, message)
  local field = nonce .. ':' .. place
  redis.call('HSET', KEYS[2], field, head .. '\n' .. message)
  tell(field, message)
end

-- What is held of a call whose reply was lost, or that came late over a connection given up.
local function repeated()
  for place = 1, limit do
    local field = nonce .. ':' .. place
    local held = redis.call('HGET', KEYS[2], field)
    local _, mark, start = read_leased(held)
    if start then
      reply[2] = mark == '!' and '1' or reply[2]
      tell(field, string.sub(held, start))
    end
  end
end

-- A message under suspicion of killing its worker is delivered alone, so that nothing else is
-- blamed or lost time with it. One worker at a time takes nothing more until it is free for it.
local function suspect()
  if redis.call('EXISTS', KEYS[7]) == 0 then
    return false
  end
  if redis.call('HLEN', KEYS[2]) > 0 or tonumber(ARGV[7]) ~= 0 then
    if tonumber(ARGV[7]) < 0 then
      return false
    end
    redis.call('SET', KEYS[8], incarnation, 'PX', lease, 'NX')
    if redis.call('GET', KEYS[8]) ~= incarnation then
      return false
    end
    reply[2] = '2'
    return true
  end
  local item = redis.call('LINDEX', KEYS[7], -1)
  local step, _, start = read_leased(item)
  hold(1, (step or ARGV[8]) .. '!', string.sub(item, start or 1))
  redis.call('RPOP', KEYS[7])
  redis.call('DEL', KEYS[8])
  reply[2] = '1'
  return true
end

local function take()
  local place = 0
  for i = 10, 9 + lists do
    if place < limit then
      for _, message in ipairs(redis.call('RPOP', KEYS[i], limit - place) or {}) do
        place = place + 1
        hold(place, ARGV[i - 2], message)
      end
    end
  end
end

local last = tonumber(redis.call('HGET', KEYS[9], incarnation) or 0)
if tonumber(nonce) <= last then
  repeated()
elseif not suspect() then
  take()
end
if #reply > 2 then
  redis.call('HSET', KEYS[9], incarnation, math.max(last, tonumber(nonce)))
  hold_lease(KEYS[3], KEYS[4], queue, incarnation, ends)
end
for i = #KEYS, 10, -1 do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    reply[1] = i - 9
  end
end
local waiting = redis.call('EXISTS', KEYS[7]) == 1 and redis.call('EXISTS', KEYS[8]) == 0
if reply[1] > 0 or waiting then
  wake(KEYS[1])
else
  redis.call('DEL', KEYS[1])
end
return reply
