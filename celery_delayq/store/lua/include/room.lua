-- Bytes of messages that a call may still read or move: about 1 MB, so that others do not wait
-- longer for a few large messages than for many small ones. It goes on while there is room for more,
-- so what does not fit is the last one, and there is one at least.
local room = 1000000

local function take_room(bytes)
  room = room - bytes
end
