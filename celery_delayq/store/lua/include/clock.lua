-- Microseconds since 1970 by this server's clock.
local function now_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Milliseconds of it, rounded down: what is due at 5 ms is not before.
local function to_ms(us)
  return math.floor(us / 1000)
end
