-- How much a call may still read or move.
--
-- Defines  room  take_room  longest_bytes  wanted_count  most_at_once  count_to_read  take_read

-- Bytes of messages that a call may still read or move: about 1 MB, so that others do not wait
-- longer for a few large messages than for many small ones. It goes on while there is room for
-- more, so what does not fit is the last one, and there is one at least.
local room = 1000000

local function take_room(bytes)
  room = room - bytes
end

-- How many messages of unknown length to read at once: one at first, then twice as many each time
-- if they fit when they are as long as the ones before, up to a limit.
local longest_bytes, wanted_count, most_at_once = 0, 0.5, 40

local function count_to_read(most)
  wanted_count = wanted_count * 2
  local fit = longest_bytes > 0 and room / longest_bytes or 1
  return math.max(1, math.floor(math.min(fit, wanted_count, most_at_once, most)))
end

-- Count messages that were read, and their bytes.
local function take_read(number, bytes)
  take_room(bytes)
  longest_bytes = math.max(longest_bytes, bytes / math.max(1, number))
end
