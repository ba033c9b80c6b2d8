-- Count the bytes that a call may still read or move.
--
-- Defines  bytes_left  take_bytes  longest_bytes  wanted_count  most_at_once  count_to_read
--            take_read

-- Bytes of messages that a call may still read or move. The limit is about 1 MB, so that other
-- clients wait no longer for a few large messages than for many small ones. A call stops after the
-- message that exceeds the limit, so it always handles one.
local bytes_left = 1000000

local function take_bytes(bytes)
  bytes_left = bytes_left - bytes
end

-- How many messages of unknown length to read at once. A call reads one, then twice as many each
-- time, up to a limit, if messages of the longest length so far fit.
local longest_bytes, wanted_count, most_at_once = 0, 0.5, 40

local function count_to_read(most)
  wanted_count = wanted_count * 2
  local fit = longest_bytes > 0 and bytes_left / longest_bytes or 1
  return math.max(1, math.floor(math.min(fit, wanted_count, most_at_once, most)))
end

-- Count the messages and bytes that were read.
local function take_read(number, bytes)
  take_bytes(bytes)
  longest_bytes = math.max(longest_bytes, bytes / math.max(1, number))
end
