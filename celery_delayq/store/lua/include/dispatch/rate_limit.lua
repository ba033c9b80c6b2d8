-- How many entries may be promoted. PACE has 'tokens', the number that might be promoted at the
-- time 'at' (µs). While a queue is full, PACE has 'below': leases/acquire.lua plans a look at the
-- queue when fewer messages are ready.
--
-- Defines  promotable_count  count_promoted  look_when_below
-- Expects  clock: to_ms
--          dispatch/next_due: hint_look

-- Returns how many of 'most' entries may be promoted now. If a limit applies, also returns when to
-- look again (ms). 'rate' is entries a second, 'ready' the most ready messages; both are 0 for no
-- limit.
local function promotable_count(key, lists, most, rate, ready, time_us)
  local look
  if rate > 0 then
    -- Unused tokens of more than a tenth of a second are lost, so no burst follows a pause.
    local burst = math.max(1, rate / 10)
    local tokens, at = unpack(redis.call('HMGET', key, 'tokens', 'at'))
    tokens, at = tonumber(tokens) or burst, tonumber(at) or time_us
    tokens = math.min(burst, math.max(0, tokens) + math.max(0, time_us - at) * rate / 1000000)
    redis.call('HSET', key, 'tokens', string.format('%.6f', tokens), 'at',
      string.format('%.0f', time_us))
    if tokens < most then
      most = math.floor(tokens)
      -- Wait for several tokens: a script call for each token would cost too much.
      local wanted = math.min(burst, math.max(1, rate / 100))
      look = math.ceil((time_us + math.max(0, wanted - (tokens - most)) * 1000000 / rate) / 1000)
    end
  end
  if ready > 0 then
    local there = 0
    for _, list in ipairs(lists) do
      there = there + redis.call('LLEN', list)
    end
    if ready - there < most then
      most = math.max(0, ready - there)
      look = math.max(look or 0, to_ms(time_us) + 1000)
      redis.call('HSET', key, 'below', math.ceil(ready / 2))
    else
      redis.call('HDEL', key, 'below')
    end
  end
  return most, look
end

-- Take the tokens of promoted entries.
local function count_promoted(key, number, rate)
  if rate > 0 and number > 0 then
    redis.call('HINCRBYFLOAT', key, 'tokens', -number)
  end
end

-- Plan a look now at a queue that was full: fewer than 'below' messages are ready.
local function look_when_below(key, next_due, queue, time_us, channel)
  redis.call('HDEL', key, 'below')
  redis.call('ZADD', next_due, 'LT', to_ms(time_us), queue)
  hint_look(channel, queue, to_ms(time_us), time_us)
end
