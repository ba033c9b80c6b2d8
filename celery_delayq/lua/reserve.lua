-- Lease messages of one queue to a process, at most as many as it asks for.
--
-- KEYS     1 wake  2 leased  3 leases  4 reaping  5 clock  6 deliveries  7 suspects
--          8 suspect_turn  9 nonces  10… ready lists, the most urgent first
-- ARGV     1 queue  2 incarnation  3 lease (ms)  4 nonce, a number that grows  5 most messages
--          6 how many ready lists to take from  7 how many messages the process holds of any
--          queue, or may get by other calls; -1 when it cannot make room for long  8… the priority steps of KEYS[10…]
-- Returns  {place of the first ready list with something left, 0 for none; '1' when delivered
--          alone, '2' when the process is to take nothing until it holds nothing; the fields
--          '<nonce>:<place>' of the messages, after spaces; what is known of their deliveries
--          before, each after a comma, or '' when nothing is known of any; then the messages}
-- Repeat   returns what is still held of the same nonce, and takes nothing
-- @include clock
-- @include types
-- @include wake
-- @include lease

local queue, incarnation, lease, nonce = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local limit, lists = tonumber(ARGV[5]), tonumber(ARGV[6])
local reply = {0, '0', '', ''}

-- Before anything moves, all that can be refused.
local held = read_typed('hash', 'HLEN', KEYS[2])
read_typed('zset', 'ZSCORE', KEYS[3], incarnation)
-- Moving frees memory, so a full server must let it pass: see promote.lua.
read_typed('zset', 'ZREM', KEYS[4], '')
local counted = read_typed('hash', 'HLEN', KEYS[6]) > 0
local suspects = read_typed('list', 'LLEN', KEYS[7])
local last = tonumber(read_typed('hash', 'HGET', KEYS[9], incarnation) or 0)
local ready = {}
for i = 10, #KEYS do
  ready[i] = read_typed('list', 'LLEN', KEYS[i])
end
local ends = lease_now(KEYS[5], lease / 3) + lease

local function tell(field, message)
  reply[#reply + 1] = message
  reply[3] = reply[3] .. ' ' .. field
  if counted then
    reply[4] = reply[4] .. ',' .. (redis.call('HGET', KEYS[6], redis.sha1hex(message)) or '')
  end
end

-- What is held of a call whose reply was lost, or that came late over a connection given up.
local function repeated()
  for place = 1, limit do
    local field = nonce .. ':' .. place
    local item = redis.call('HGET', KEYS[2], field)
    local _, mark, start = read_leased(item)
    if start then
      reply[2] = mark == '!' and '1' or reply[2]
      tell(field, string.sub(item, start))
    end
  end
end

-- A message under suspicion of killing its worker is delivered alone, so that nothing else is
-- blamed or lost time with it. One worker at a time takes nothing more until it is free for it.
local function suspect()
  if suspects == 0 then
    return false
  end
  if held > 0 or tonumber(ARGV[7]) ~= 0 then
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
  local message = string.sub(item, start or 1)
  local field = nonce .. ':1'
  redis.call('HSET', KEYS[2], field, (step or ARGV[8]) .. '!\n' .. message)
  tell(field, message)
  redis.call('RPOP', KEYS[7])
  redis.call('DEL', KEYS[8])
  suspects = suspects - 1
  reply[2] = '1'
  return true
end

local function take()
  local place, fields = 0, {}
  local function hold()
    if #fields > 0 then
      redis.call('HSET', KEYS[2], unpack(fields))
      fields = {}
    end
  end
  for i = 10, 9 + lists do
    if place < limit and ready[i] > 0 then
      for _, message in ipairs(redis.call('RPOP', KEYS[i], limit - place)) do
        place = place + 1
        ready[i] = ready[i] - 1
        local field = nonce .. ':' .. place
        fields[#fields + 1] = field
        fields[#fields + 1] = ARGV[i - 2] .. '\n' .. message
        tell(field, message)
        if #fields == 1000 then
          hold() -- the stack of Lua has an end
        end
      end
    end
  end
  hold()
end

if tonumber(nonce) <= last then
  repeated()
elseif not suspect() then
  take()
end
if #reply > 4 then
  redis.call('HSET', KEYS[9], incarnation, math.max(last, tonumber(nonce)))
  hold_lease(KEYS[3], KEYS[4], queue, incarnation, ends)
end
for i = #KEYS, 10, -1 do
  if ready[i] > 0 then
    reply[1] = i - 9
  end
end
local waiting = suspects > 0 and redis.call('EXISTS', KEYS[8]) == 0
if reply[1] > 0 or waiting then
  wake(KEYS[1])
else
  redis.call('DEL', KEYS[1])
end
return reply
