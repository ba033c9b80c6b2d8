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
