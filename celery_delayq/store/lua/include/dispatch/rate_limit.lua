-- How much may be promoted: PACE keeps 'tokens' (may be promoted at once) as they were 'at' (µs),
-- and, while a queue is full, 'below': leases/acquire.lua has it looked at again when fewer are
-- ready.
--
-- Defines  promotable_count  count_promoted  look_when_below
-- Expects  clock: to_ms
--          dispatch/next_due: hint_look

-- How many of 'most' entries may be promoted now and, when that is fewer than wanted, when to look
-- again (ms). 'rate' a second and 'ready', the most messages that may be ready, are 0 for no limit.
local function promotable_count(key, lists, most, rate, ready, clock)
  local look
  if rate > 0 then
    -- What was not used in a tenth of a second is lost, so that no flood follows a pause.
    local burst = math.max(1, rate / 10)
    local tokens, at = unpack(redis.call('HMGET', key, 'tokens', 'at'))
    tokens, at = tonumber(tokens) or burst, tonumber(at) or clock
    tokens = math.min(burst, math.max(0, tokens) + math.max(0, clock - at) * rate / 1000000)
    redis.call('HSET', key, 'tokens', string.format('%.6f', tokens), 'at',
      string.format('%.0f', clock))
    if tokens < most then
      most = math.floor(tokens)
      -- Several at once: a script call for each would cost more than it evens out.
      local wanted = math.min(burst, math.max(1, rate / 100))
      look = math.ceil((clock + math.max(0, wanted - (tokens - most)) * 1000000 / rate) / 1000)
    end
  end
  if ready > 0 then
    local there = 0
    for _, list in ipairs(lists) do
      there = there + redis.call('LLEN', list)
    end
    if ready - there < most then
      most = math.max(0, ready - there)
      look = math.max(look or 0, to_ms(clock) + 1000)
      redis.call('HSET', key, 'below', math.ceil(ready / 2))
    else
      redis.call('HDEL', key, 'below')
    end
  end
  return most, look
end

-- Note what was promoted.
local function count_promoted(key, number, rate)
  if rate > 0 and number > 0 then
    redis.call('HINCRBYFLOAT', key, 'tokens', -number)
  end
end

-- Look at once at a queue that was full: there are fewer than 'below' now.
local function look_when_below(key, next_due, queue, clock, channel)
  redis.call('HDEL', key, 'below')
  redis.call('ZADD', next_due, 'LT', to_ms(clock), queue)
  hint_look(channel, queue, to_ms(clock), clock)
end
