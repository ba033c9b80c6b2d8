-- The clock of Redis, and whole numbers that were read from a key.
--
-- Defines  now_us  to_ms  read_whole

-- Microseconds since 1970 by this server's clock.
local function now_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Milliseconds of it, rounded down: what is due at 5 ms is not before.
local function to_ms(us)
  return math.floor(us / 1000)
end

-- A whole number that stands in a key, such as a time (ms); nil for anything else: anybody may have
-- written it.
local function read_whole(text)
  local is_whole = type(text) == 'string' and #text <= 15 and string.match(text, '^%-?%d+$')
  return is_whole and tonumber(text) or nil
end
