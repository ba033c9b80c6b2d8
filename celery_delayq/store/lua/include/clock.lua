-- Read the clock of Redis, and whole numbers from keys. No other file calls TIME.
--
-- The variant +travel reads the clock that a test has set on its private server
-- (celery_delayq/store/scripting/clock.py). Without that key it fails: the server is another one.
--
-- Defines  now_us  to_ms  read_whole

-- Microseconds since 1970 by this server's clock.
local function now_us()
  local time = redis.call('TIME')
  -- @with travel
  local set_by_test = redis.call('LRANGE', 'delayq:test_clock', 0, 1)
  if not set_by_test[2] then
    error('NOTESTCLOCK delayq_time moves the clock of another Redis, or this one was emptied', 0)
  end
  time = set_by_test
  -- @end
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Microseconds as milliseconds, rounded down: an entry that is due at 5 ms is not due at 4.9 ms.
local function to_ms(us)
  return math.floor(us / 1000)
end

-- A whole number in a key, such as a time (ms). Returns nil for any other text: other programs may
-- write to the key.
local function read_whole(text)
  local is_whole = type(text) == 'string' and #text <= 15 and string.match(text, '^%-?%d+$')
  return is_whole and tonumber(text) or nil
end
