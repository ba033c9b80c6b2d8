-- Reading messages whose lengths are not known before, a few at once: one at first, then as many as
-- there is room for if they are as long as those so far, but 10 at most.
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

-- So many were read, with so many bytes.
local function take_read(number, bytes)
  take_room(bytes)
  if number > 0 and bytes / number > long then
    long = bytes / number
  end
end
