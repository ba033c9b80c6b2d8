-- Bytes of messages that a call may still read or move: about 1 MB, so that others do not wait
-- longer for a few large messages than for many small ones. It goes on while there is room for more,
-- so what does not fit is the last one, and there is one at least.
local room = 1000000

local function take_room(bytes)
  room = room - bytes
end

-- How many messages of unknown length to read at once: one at first, then as many as fit if they
-- are as long as the ones before, at most 10.
local long = 0

local function few(most)
  if long == 0 then
    return 1
  end
  local number = room / long
  if number > 10 then
    number = 10
  end
  if number > most then
    number = most
  end
  return number < 1 and 1 or math.floor(number)
end

-- Count messages that were read, and their bytes.
local function take_read(number, bytes)
  take_room(bytes)
  if number > 0 and bytes / number > long then
    long = bytes / number
  end
end
